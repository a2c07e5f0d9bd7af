"""The public measurements: their physics, the protocol by which predictors are compared on them, and the contract for foreign checks.

Nothing here is needed to run the operator; ``metainfer evaluate`` and ``metainfer evaluate-adapter`` start here.
"""
