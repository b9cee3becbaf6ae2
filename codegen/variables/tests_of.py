"""The test that sees each variable do what its row says, for `buildd env --json`. Knows names only.

A repository test holds that these tests exist and name their variable.
"""

from __future__ import annotations

from codegen.variables.variable import Use, Variable

_ROWS = "tests/codegen/variables/test_rows.py::"
_ROW_TESTS = {
    Use.ACTS: _ROWS + "test_a_plan_changes_with_it",
    Use.PASSED_ON: _ROWS + "test_a_tool_receives_it_and_the_key_has_it",
    Use.NONE: _ROWS + "test_it_has_no_effect_here",
}
_ACTS = {
    "tests/scheduling/test_scheduler.py": {
        "test_num_builders_caps_a_request_and_a_time_line_is_told_for_every_job": "NUM_BUILDERS AIT_TIME_COMPILATION",
        "test_the_profiles_in_cache_dir_are_emptied_once_for_a_build": "CACHE_DIR FLUSH_PROFILE_CACHE",
    },
    "tests/codegen/variables/test_environment.py": {
        "test_caps_of_jobs": "SLURM_CPUS_ON_NODE",
        "test_visible_devices": "CUDA_VISIBLE_DEVICES",
        "test_hip_obeys_its_own_devices_first": "HIP_VISIBLE_DEVICES",
    },
    "tests/commands/test_command_variables.py": {
        "test_a_commands_own_variables_act_from_each_place": "LOGLEVEL BUILDD_JOBS",
    },
    "tests/shims/test_environment.py": {
        "test_the_doctor_warns_of_what_harms_below_a_run": "AIT_TRACE_MAKE AIT_BUILD_CACHE_DIR AIT_BUILD_CACHE_*",
        "test_easydels_wrong_cache_is_named_once_and_left_as_it_is": "EASYDEL_CACHE_COMPILES",
        "test_a_run_sets_what_the_user_has_not_set": "TORCH_NO_COMPILER_WRAPPER PYTORCH_NVCC MAKEFLAGS",
        "test_a_cache_of_the_users_own_keeps_buildds_away": "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE TRITON_CACHE_MANAGER",
        "test_a_kernel_without_its_stages_has_another_name": "TRITON_STORE_BINARY_ONLY",
        "test_a_recording_run_tells_its_programs_where": "BUILDD_RECORD BUILDD_RECORD_ROOT",
    },
    "tests/commands/test_prove_command.py": {
        "test_a_proof_compiles_nothing_and_names_what_is_missing": "BUILDD_PROVE",
    },
    "tests/tier/test_tier_settings.py": {
        "test_the_variables_count_in_config_toml_too": "BUILDD_TIER BUILDD_TIER_WRITE",
        "test_headers_come_from_a_variable_and_are_not_shown": "BUILDD_TIER_HEADERS",
    },
    "tests/cluster/test_ray_settings.py": {
        "test_the_variable_counts_in_config_toml_too": "RAY_ADDRESS",
    },
    "tests/hooks/test_triton_cache.py": {
        "test_the_tag_names_the_processor_and_keeps_the_users_own": "TORCH_COMPILE_CACHE_KEY_TAG",
        "test_builds_of_extensions_are_as_wide_as_the_budget": "MAX_JOBS",
    },
    "tests/codegen/python/test_torch_model.py": {
        "test_threads_and_vector_width_are_part_of_the_action": "OMP_NUM_THREADS",
        "test_clang_is_refused": "CXX",
        "test_a_trace_is_an_artifact": "TORCH_TRACE",
    },
    "tests/codegen/python/test_extension.py": {
        "test_cuda_sources_go_through_nvcc_in_its_steps": "TORCH_CUDA_ARCH_LIST",
    },
    "tests/codegen/compilers/test_temporary_roots.py": {
        "test_behind_a_link_nothing_is_mapped": "PWD",
        "test_a_mapped_checkout_hits_for_another": "BUILDD_MAP_PATHS",
    },
    "tests/codegen/compilers/test_checkout_roots.py": {
        "test_roots_are_named_by_their_height_above_the_working_folder": "BUILDD_RUN_FOLDER",
    },
    "tests/codegen/compilers/test_toolchain.py": {
        "test_the_order_of_search": "PATH",
    },
    "tests/jax/test_jax_cache.py": {
        "test_the_reasons_name_the_argument_and_the_flag": "XLA_FLAGS LIBTPU_INIT_ARGS",
        "test_the_users_file_sets_them_too": "JAX_COMPILATION_CACHE_DIR JAX_ENABLE_COMPILATION_CACHE"
        " JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
    },
    "tests/jax/test_easydel_variables.py": {
        "test_easydels_word_for_compiling_again_counts": "EASYDEL_RECOMPILE_FORCE",
        "test_importing_ejkernel_leaves_the_users_folder_and_keeps_no_pickles": "COMPILE_FUNC_DIR",
        "test_ejkernels_tuners_at_once_lose_nothing": "EJKERNEL_PERSISTENT_CACHE_DIR",
    },
    "tests/commands/test_run.py": {
        "test_who_wants_no_line_has_the_terminal_itself": "BUILDD_PROGRESS",
    },
    "tests/shims/test_shim_folders.py": {
        "test_permanent_things_lie_in_the_users_data_folder": "XDG_DATA_HOME",
    },
    "tests/shims/test_launcher.py": {
        "test_without_a_daemon_the_tool_runs": "BUILDD_DISABLE",
        "test_what_is_to_be_compiled_again_is_not_answered": "BUILDD_RECACHE",
    },
    "tests/store/test_location.py": {
        "test_an_option_goes_before_the_variable_and_that_before_the_cache_folder": "BUILDD_DIR XDG_CACHE_HOME HOME",
    },
    "tests/protocol/test_endpoint.py": {
        "test_the_explicit_folder_wins": "BUILDD_RUNTIME_DIR",
        "test_the_session_folder_is_used_when_it_is_ours_and_closed": "XDG_RUNTIME_DIR",
    },
    "tests/daemon/test_start_variables.py": {
        "test_a_daemon_starts_with_what_the_shell_or_the_users_file_says": (
            "BUILDD_TCP BUILDD_LOG BUILDD_IDLE_TIMEOUT_S"
        ),
        "test_the_bounds_of_the_machine_come_from_the_same_places": "BUILDD_CACHE_SIZE BUILDD_MEMORY",
    },
    "tests/daemon/test_redis.py": {
        "test_the_users_settings_turn_it_on_for_good": "BUILDD_REDIS",
    },
    "tests/scheduling/test_step_jobs.py": {
        "test_what_spares_cudafe_its_pages_is_preloaded_into_it_alone_and_may_be_turned_off": "BUILDD_PRELOAD",
    },
    "tests/torch/test_torch_traces.py": {
        "test_a_trace_is_not_taken_where_the_user_does_not_ask": "BUILDD_TORCH_TRACES",
    },
    "tests/scheduling/test_warm_jobs.py": {
        "test_warm_workers_may_be_turned_off": "BUILDD_WARM_WORKERS",
    },
    "tests/commands/test_cli_server.py": {
        "test_a_build_is_carried_out_elsewhere_and_says_and_does_the_same": "BUILDD_CLI_SERVER",
    },
    "tests/store/test_answers.py": {
        "test_hits_are_noted_and_counted_once": "BUILDD_BUILD_ID",
    },
    "tests/shims/test_interposition.py": {
        "test_a_build_can_do_without": "BUILDD_INTERPOSE",
    },
    "tests/shims/test_colours.py": {
        "test_a_terminal_shows_what_it_shows_without_us": "GCC_COLORS",
    },
    "tests/shims/test_jobserver.py": {
        "test_builders_are_not_found_among_shims": "BUILDD_JOBSERVER",
    },
    "tests/hooks/test_signatures.py": {
        "test_keys_are_where_the_user_has_theirs": "BUILDD_KEY_DIR XDG_CONFIG_HOME",
    },
    "tests/web/test_spans.py": {
        "test_a_build_reaches_a_collector": "OTEL_EXPORTER_OTLP_ENDPOINT OTEL_SERVICE_NAME TRACEPARENT TRACESTATE",
        "test_the_variables_say_whether_spans_are_wanted": (
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT OTEL_TRACES_EXPORTER OTEL_SDK_DISABLED"
        ),
    },
    "tests/ui/test_plain.py": {
        "test_terminals": "NO_COLOR BUILDD_COLOR CLICOLOR_FORCE FORCE_COLOR CLICOLOR",
    },
}
"""File -> test -> the variables that it sees act, other than in plans."""


def test_of(variable: Variable) -> str:
    """Return the test of a variable, as pytest names it."""
    for file, tests in _ACTS.items():
        for name, names in tests.items():
            if variable.name in names.split():
                return f"{file}::{name}"
    return f"{_ROW_TESTS[variable.use]}[{variable.name}]"
