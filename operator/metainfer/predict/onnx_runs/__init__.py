"""Our own benchmarks of ONNX models as a test of the whole choice: models held out, the operator's ranking and validation played on known answers.

Nothing here is needed to run the operator; ``metainfer evaluate --pool onnx`` and ``hack/bench/decision`` start here.
"""
