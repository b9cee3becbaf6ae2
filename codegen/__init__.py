"""From a request to a plan. Pure: reads files it is given, runs nothing, knows no daemon and no store."""
