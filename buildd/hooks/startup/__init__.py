"""The one folder that programs of users have on their path: nothing else may lie here."""
