"""Publishing rows: `format("nsq")` with `write` and `writeStream`. packing.py makes the requests' bodies."""
