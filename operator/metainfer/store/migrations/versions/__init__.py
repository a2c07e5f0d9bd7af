"""One module per revision; never edited once released."""
