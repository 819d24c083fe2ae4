"""What holds the project to its word: all that CI checks (`python -m tools.proof.check`), and each of the checks alone.

Some also make what they check: the API reference (`reference`), the golden packets (`vectors`), the ledger of sizes (`size`).
"""
