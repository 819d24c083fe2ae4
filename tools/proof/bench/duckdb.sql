-- The pipeline's complete run in DuckDB's SQL, as fast as we could make it. `_pipeline_jobs.duckdb` runs the statements; a line with a
-- name begins one. $landing and $out are folders.

-- kept
CREATE TABLE kept AS SELECT rtrim(pack[1].bn, '/') AS device, pack[1].boot AS boot, pack[1].seq AS seq,
    first(pack[1].n) AS name, first(pack[1].u) AS unit, first(pack[1].v) AS value, first(pack[1].vs) AS text,
    first(pack[1].up) AS up, first(pack[1].bt) AS bt, min(arrival) AS arrival, first(collector) AS collector,
    first(segment) AS segment, first("row") AS "row", count(*) AS copies
FROM (SELECT collector, segment, "row", arrival, from_json(decode(payload), '[{"bn":"VARCHAR","bt":"DOUBLE","bu":"VARCHAR","bv":"DOUBLE","boot":"BIGINT",
          "seq":"BIGINT","up":"DOUBLE","n":"VARCHAR","u":"VARCHAR","v":"DOUBLE","vs":"VARCHAR","t":"DOUBLE"}]') AS pack
      FROM read_parquet('$landing/*.parquet'))
GROUP BY device, boot, seq
-- readings
COPY kept TO '$out/readings.parquet' (FORMAT parquet, COMPRESSION zstd)
-- checked
CREATE TABLE checked AS SELECT device, boot, count(*) AS in_tables, sum(n - 1) AS twice FROM
    (SELECT device, boot, seq, count(*) AS n FROM read_parquet('$out/readings.parquet') GROUP BY device, boot, seq)
GROUP BY device, boot
-- ranges
CREATE TABLE ranges AS SELECT device, boot, before + 1 AS lo, seq - 1 AS hi, seq - before - 1 AS messages FROM
    (SELECT device, boot, seq, lag(seq) OVER (PARTITION BY device ORDER BY seq) AS before FROM kept)
WHERE seq > before + 1
-- audit
CREATE TABLE audit AS SELECT device, boot, min(seq) AS first_seq, max(seq) AS last_seq, count(*) AS delivered,
    max(seq) - min(seq) + 1 AS published, sum(copies - 1) AS resent,
    approx_quantile((epoch_us(arrival) / 1e6 - bt) * 1000, [0.5, 0.9, 0.99]) AS delay_ms,
    count_if(epoch_us(arrival) / 1e6 - bt > 60) AS late, min(arrival) AS first_arrival, max(arrival) AS last_arrival
FROM kept GROUP BY device, boot
-- audit_file
COPY audit TO '$out/audit.parquet' (FORMAT parquet, COMPRESSION zstd)
-- ranges_file
COPY ranges TO '$out/missing.parquet' (FORMAT parquet, COMPRESSION zstd)
-- totals
SELECT count(DISTINCT device) AS devices, count(*) AS boots, sum(published)::BIGINT AS published,
    sum(delivered)::BIGINT AS delivered, sum(resent)::BIGINT AS resent,
    (SELECT coalesce(sum(messages), 0)::BIGINT FROM ranges) AS missing
FROM audit
-- read_back
SELECT sum(in_tables)::BIGINT AS held, sum(twice)::BIGINT AS twice FROM checked
-- devices
SELECT device, 0 AS health, sum(published)::BIGINT AS published, sum(delivered)::BIGINT AS delivered, 0 AS missing
FROM audit GROUP BY device ORDER BY device LIMIT 2500
-- over_time
SELECT list(minute ORDER BY minute) AS "at", list(n ORDER BY minute) AS messages FROM
    (SELECT epoch_us(arrival) // 60000000 * 60 AS minute, count(*) AS n FROM kept GROUP BY 1)
-- octaves
SELECT list(octave ORDER BY octave) AS octave, list(n ORDER BY octave) AS messages FROM
    (SELECT floor(log2(greatest((epoch_us(arrival) / 1e6 - bt) * 1000, 1)))::INT AS octave, count(*) AS n FROM kept GROUP BY 1)
-- missing
SELECT * FROM ranges ORDER BY messages DESC LIMIT 5000
-- boots
SELECT * EXCLUDE (delay_ms) FROM audit ORDER BY device, boot LIMIT 5000
-- span
SELECT max(epoch_ms(arrival)) - min(epoch_ms(arrival)) AS ms FROM kept
-- points
SELECT device, name, any_value(unit), min(ms), max(ms), count(*), avg(value), min(value), max(value) FROM
    (SELECT device, name, unit, value, coalesce((bt * 1000)::BIGINT, epoch_ms(arrival)) AS ms FROM kept WHERE value IS NOT NULL)
GROUP BY device, name, ms >> ? ORDER BY 1, 2, 4
