"""What `make bench` measures: one module a figure or two, each with `measure(lab)`."""
