/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of the host states in a checkpoint: the parts are "engine", "loss_scaler" (may be absent)
 * and "random", separated by "%%%%", the loss scaler last. What is accepted prints as texts that
 * are accepted and give the same. */
#include "fuzz/fuzz_files.h"
#include "train/host_state.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input input = {data, size, true};
    char *parts[3] = {NULL, NULL, NULL};
    for (int i = 0; i < 3; ++i) {
        const uint8_t *part = NULL;
        size_t n = 0;
        if (fuzz_part(&input, &part, &n)) {
            parts[i] = strndup((const char *)part, n);
        }
    }
    const dsi_host_state_texts texts = {parts[0], parts[2], parts[1]};
    dsi_host_state state;
    if (dsi_host_state_parse(fuzz_context(), "fuzz", &texts, &state) >= 0) {
        char printed[3][DSI_HOST_STATE_BYTES];
        const dsi_host_state_texts again = {printed[0], printed[1], printed[2]};
        dsi_host_state same;
        dsi_host_state_print(&state, "engine", printed[0]);
        dsi_host_state_print(&state, "loss_scaler", printed[1]);
        dsi_host_state_print(&state, "random", printed[2]);
        fuzz_require(dsi_host_state_parse(fuzz_context(), "fuzz", &again, &same) >= 0 &&
                         same.global_steps == state.global_steps && same.seed == state.seed &&
                         same.forced_lr == state.forced_lr && same.scale == state.scale &&
                         same.last_overflow == state.last_overflow &&
                         same.hysteresis_left == state.hysteresis_left,
                     "a printed state differs");
    } else {
        fuzz_require(*ds_ctx_error(fuzz_context()) != '\0', "an error without a message");
    }
    for (int i = 0; i < 3; ++i) {
        free(parts[i]);
    }
    return 0;
}
