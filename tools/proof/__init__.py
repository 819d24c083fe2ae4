"""What proves the product: faults, power cuts, fuzzing, soaks, measurements, checks. Only tests import it from outside."""
