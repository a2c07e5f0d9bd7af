"""What measurements teach beyond physics: log(latency / base) learned per card family, with an honest sigma.

The pieces, in the order in which they are used:

- ``rows``: one table format for every source (ONNX benchmarks, LLM kernel sums, serving runs); ``check_rows`` refuses what cannot be learned from.
- ``newcomers.train_with_newcomers(rows, *, seed) -> (Model, Shifts)`` (or ``training.train``): raises ``Untrainable`` with a reason; nothing else.
- ``model.Model.predict(rows, shifts=...) -> Forecast`` (``log_latency_us`` and ``sigma``, one per row).
- ``shift.learn_shifts(forecast, rows) -> Shifts``: a new card's first measured rows, shrunken by n / (n + 2.5).
- ``effects.correct(rows, forecast, seen, seen_forecast) -> Forecast``: sequential validation, ridge effects of what rows have in common;
  ``picking.Contest`` scores, shortlists and finds what is worth running next.
- ``document.model_to_document(model) -> dict`` and ``model_from_document(document) -> Model``: JSON only, no pickle; raises ``ModelUnreadable``.

Measured tables that ship with the operator lie in ``metainfer/predict/tables`` (compressed CSV, with a README that names source and licence);
``tables.table_path(name)`` says where, ``public.columns.read_columns`` reads one. A pretrained model lies beside them as ``model.json.gz``.
"""
