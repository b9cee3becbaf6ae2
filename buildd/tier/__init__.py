"""The shared tier: results that other machines have made, in a place that all of them reach."""
