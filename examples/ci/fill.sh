#!/bin/sh
# Compiles everything ahead, without a GPU, and exports it: fill.sh BUNDLE [RECORDING]
# ARCH (such as sm_80,sm_90a) chooses the architectures of the targets in buildd.toml. OCI=1 writes an OCI image layout.
set -eu
bundle=$1 recording=${2:-}
if [ -f buildd.toml ]; then buildd warm ${ARCH:+--arch "$ARCH"}; fi
if [ -n "$recording" ]; then buildd warm --manifest "$recording"; fi
buildd cache export "$bundle" --all ${OCI:+--oci}
