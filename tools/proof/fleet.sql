-- A segment of a fleet's landing. $first and $count: the messages of every device, from 0; they begin in September 2026. A device's
-- messages arrive in order, its copies a little later.
WITH published AS (
    SELECT device, ordinal, ordinal % $boot_every AS in_boot, printf('board-%05d', device) AS name,
        1_790_000_000_000_000 + (ordinal * $interval_ms + device * 7919 % $interval_ms) * 1000 AS captured_us,
        list_transform(range(5), lambda n: (hash(device, ordinal, n, $seed) % 1000003 + 1) / 1000004) AS random  -- each below 1
    FROM range($devices) AS devices(device), range($first, $first + $count) AS messages(ordinal)
), sent AS (
    SELECT *, captured_us + (1000 * exp(3.5 + sqrt(-2 * ln(random[1])) * cos(2 * pi() * random[2])))::BIGINT AS reached_us,
        '[{"bn":"' || name || '/","life":' || (device + 1) * 1000003 % 1073741823 + 1 || ',"boot":'
        || ordinal // $boot_every + 1 || ',"seq":' || ordinal + 1
        || ',"up":' || (500 + in_boot * $interval_ms + device % 977) / 1000 || ',"bt":' || round(captured_us / 1e6, 3)
        || if(in_boot = 0, ',"n":"cause","vs":"power"', ',"n":"load1","u":"/","v":' || round(100 * random[3], 2)) || '}]' AS pack
    FROM published
), arrived AS (
    SELECT *, max(reached_us) OVER (PARTITION BY device ORDER BY ordinal) AS arrival_us, false AS dup FROM sent
), landed AS (
    FROM arrived
    UNION ALL SELECT * REPLACE (arrival_us + (3e6 * random[5])::BIGINT AS arrival_us, true AS dup) FROM arrived
    WHERE random[4] < $duplicates
)
SELECT 'fleet' AS collector, $number AS segment, $before + row_number() OVER arrivals AS "row",
    make_timestamp(arrival_us) AS arrival, 'flashmqtt/' || name || if(in_boot = 0, '/boot', '/readings') AS topic, 1 AS qos, dup,
    false AS retain, NULL::BLOB AS properties, encode(pack) AS payload
FROM landed WINDOW arrivals AS (ORDER BY arrival_us, device, ordinal, dup) ORDER BY "row"
