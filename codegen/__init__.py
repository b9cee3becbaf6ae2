"""Turns a request into a plan. Pure: reads files, runs nothing, and knows no daemon and no store."""
