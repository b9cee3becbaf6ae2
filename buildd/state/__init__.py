"""The state machine of requests and jobs. PURE."""
