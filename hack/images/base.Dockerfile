# The offline base: Debian with Python, made by mmdebstrap. Where a registry is at hand, python:3.11-slim-bookworm does the same.
FROM scratch
ADD base.tar /
ENV LANG=C.UTF-8
