"""`python -m tools.proof.powercut`: cut the power at every flash operation of the journal, in every way; check the recovery.

Without arguments: every script is cut at every operation with every fault model and with device pages of 256, 64, 32 and 1 byte;
after some of these cuts the recovery is cut, too. An adversary tries every chain of up to five cuts on small journals, and random
chains on larger ones. First mounts are cut. In random lives, cuts accumulate and sectors become bad. The counts go to
build/powercut.json.

    --short            some minutes: fewer variants, fewer pairs, fewer plans
    --script NAME      only this script (may be repeated); also: lives, adversary, chains, first-mounts
    --replay ID        one case alone, with the id that a failure printed, and the whole error

Exit status: 0 every promise was kept; 1 a promise was broken, ids are printed.
"""

import sys
import time

from tools import children
from tools.command import exit_status, parser_of
from tools.proof import counts
from tools.proof.powercut import lives
from tools.proof.powercut.adversary import PLANS, SHORT_PLANS, enumerate_plan
from tools.proof.powercut.cuts import BREAKS, GEOMETRIES, run_script
from tools.proof.powercut.scripts import SCRIPTS

LONG = {"variants": 2, "pairs": 12, "lives": 400, "chains": 8000, "first-mounts": 10000}
SHORT = {"variants": 1, "pairs": 40, "lives": 10, "chains": 200, "first-mounts": 400}


def one(job: tuple[str, str, dict[str, int], int, int]) -> tuple[str, str, int, list[tuple[str, str]]]:
    """Cut a share of a script's operations, or run a share of the random cases; a process of the pool runs this."""
    name, geometry, how, share, shares = job
    if name not in SAMPLED:
        return (
            name,
            geometry,
            *run_script(name, how["variants"], how["pairs"], 1, geometry=geometry, share=(share, shares)),
        )
    cuts = 0
    broken: list[tuple[str, str]] = []
    for number in range(share, how[name], shares):
        try:
            cuts += SAMPLED[name](number)
        except BREAKS as error:
            broken.append((f"{name}/{number}", repr(error)))
    return name, geometry, cuts, broken


SAMPLED = {"lives": lives.on_chip, "chains": lives.on_cells, "first-mounts": lives.first_mounts}


def run_plans(names: tuple[str, ...]) -> tuple[int, list[tuple[str, str]]]:
    """Let the adversary enumerate plans; return (cuts, list of (id, error))."""
    cuts = 0
    broken: list[tuple[str, str]] = []
    for plan in PLANS:
        if plan.name not in names:
            continue
        stats = enumerate_plan(plan)
        cuts += stats.cuts
        broken += [(f"adversary/{plan.name}", text) for text in stats.broken]
        print(
            f"adversary {plan.name}: {stats.cuts:,} cuts, {stats.boots:,} boots, states after each cut {stats.states}, "
            f"{len(stats.broken)} broken",
            flush=True,
        )
        for text in stats.broken[:3]:
            print(f"    {text}", flush=True)
    return cuts, broken


def replay(case: str) -> int | None:
    """Run one case; raise its error; return how many cuts it has, None if there is no such case."""
    name, _, number = case.partition("/")
    script, _, geometry = name.partition("@")
    if name in SAMPLED and number.isdecimal():
        return SAMPLED[name](int(number))
    if name == "adversary":
        cuts, broken = run_plans((number,))
        if broken:
            raise SystemExit(1)
    elif script in [one[0] for one in SCRIPTS] and (geometry or "rp2") in GEOMETRIES and number:
        cuts, _ = run_script(script, 99, 1, 99, only=case, geometry=geometry or "rp2")
    else:
        cuts = 0
    return cuts or None


def main(argv: list[str] | None = None) -> int:
    """Run; return the exit status."""
    scripts = [s[0] for s in SCRIPTS]
    parser = parser_of("tools.proof.powercut", __doc__)
    parser.add_argument("--short", action="store_true", help="some minutes")
    parser.add_argument("--script", action="append", choices=[*scripts, *SAMPLED, "adversary"], help="only this one")
    parser.add_argument("--replay", metavar="ID", help="one case, with its printed id")
    options = parser.parse_args(argv)
    if options.replay:
        cuts = replay(options.replay)
        if cuts is None:
            parser.error(f"argument --replay: there is no case {options.replay}")
        print(f"{options.replay}: holds, {cuts} cuts")
        return 0
    how = SHORT if options.short else LONG
    names = options.script or [*scripts, *SAMPLED, "adversary"]
    shares = 1 if options.short else 4
    jobs = [
        (name, geometry, how, share, shares)
        for name in names
        if name != "adversary"
        for geometry in (("",) if name in SAMPLED else ("rp2",) if options.short else GEOMETRIES)
        for share in range(shares)
    ]
    began = time.monotonic()
    broken: list[tuple[str, str]] = []
    total = chains = 0
    with children.pool() as pool:
        for done, (name, geometry, cuts, more) in enumerate(pool.imap_unordered(one, jobs), 1):
            broken += more
            total += cuts
            print(f"{done}/{len(jobs)} {name}@{geometry}: {cuts:,} cuts, {len(more)} broken", flush=True)
            for case, error in more[:5]:
                print(f"  --replay {case}\n    {error}", flush=True)
    if "adversary" in names:
        chains, more = run_plans(SHORT_PLANS if options.short else tuple(plan.name for plan in PLANS))
        broken += more
    seconds = time.monotonic() - began
    print(f"\n{total:,} power cuts in {seconds:.0f} s, {chains:,} more by the adversary: {len(broken)} broken promises")
    if not options.script:  # only a whole run gives figures
        counted = {"cuts": total, "violations": len(broken), "adversary_chains": chains, "short": options.short}
        counts.write("powercut", counted)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
