"""All checks of `make check` and CI (`python -m tools.proof.check`), and each check alone.

Some also make what they check: the golden packets (`vectors`), the ledger of sizes (`size`).
"""
