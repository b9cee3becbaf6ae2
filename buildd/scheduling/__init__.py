"""Carries requests out: plans them, runs their jobs, completes them."""
