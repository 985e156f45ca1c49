/* SPDX-License-Identifier: Apache-2.0 */
/* Precision: fp16, bf16, data_types, amp, torch_autocast. */
#include "config/option_rows.h"

/* Their sections were open before DeepSpeed 0.17. */
#define PASSED_OVER "DeepSpeed read nothing of it, and refuses it since 0.17"
#define NO_SCALE(k)                                                                                \
    ANY(k, "null", NO_EFFECT, "Of fp16's loss scale, in files for old versions of DeepSpeed.",     \
        NOTE("bf16 has no loss scale; " PASSED_OVER))

static const dsi_option fp16_rows[] = {
    B("enabled", "false", IN_FORCE, "Compute in fp16, with fp32 master weights.", WITH(TRAINER),
      FIELD(fp16.enabled)),
    B("auto_cast", "false", NO_EFFECT, "Cast inputs to fp16.",
      NOTE("inputs are token ids; there is nothing to cast")),
    R("loss_scale", "0", IN_FORCE, "Fixed loss scale. 0: dynamic.", MIN(0), FIELD(fp16.loss_scale)),
    I("initial_scale_power", "16", IN_FORCE, "The dynamic scale starts at 2 to this power.",
      MIN(-126), MAX(127)),
    I("loss_scale_window", "1000", IN_FORCE,
      "Steps without overflow after which the dynamic scale doubles.", MIN(1),
      FIELD(fp16.loss_scale_window)),
    I("hysteresis", "2", IN_FORCE, "Overflows before the dynamic scale halves.", MIN(1),
      FIELD(fp16.hysteresis)),
    B("consecutive_hysteresis", "false", IN_FORCE,
      "Refill the hysteresis after every step without overflow.",
      FIELD(fp16.consecutive_hysteresis)),
    R("min_loss_scale", "1", IN_FORCE,
      "Least dynamic scale; an overflow there is fatal. (DeepSpeed since 0.17: a whole number.)",
      MIN(0), WITH(ABOVE), FIELD(fp16.min_loss_scale)),
    ANY("opt_level", "null", NO_EFFECT, "Of NVIDIA Apex, in files for old versions of DeepSpeed.",
        NOTE(PASSED_OVER)),
    ANY("fp16_scale_tolerance", "null", NO_EFFECT, "Of other programs.", NOTE(PASSED_OVER)),
    B("fp16_master_weights_and_grads", "false", IN_FORCE,
      "No fp32 master weights; gradients accumulate in fp16. Needs ZeRO stage 1 or more.",
      FIELD(fp16.master_weights_and_grads)),
};
const dsi_section dsi_section_fp16 = {
    .path = "fp16",
    .doc = "Half precision with loss scaling. Excludes bf16.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_GATED,
    DSI_SECTION_ROWS(fp16_rows),
};

static const dsi_option bf16_rows[] = {
    B("enabled", "false", IN_FORCE, "Compute in bf16, with fp32 master weights.", WITH(TRAINER),
      FIELD(bf16.enabled)),
    B("immediate_grad_update", "false", IN_FORCE,
      "Accumulate a gradient as soon as it is there. Here it always is.",
      FIELD(bf16.immediate_grad_update)),
    B("check_grad_overflow", "true", IN_FORCE,
      "Skip a step whose gradients are not finite. false: apply them; then, without clipping and "
      "with gradient_accumulation_steps 1, the backward pass updates each parameter as soon as its "
      "gradient is complete.",
      FIELD(bf16.check_grad_overflow)),
    B("bf16_master_weights_and_grads", "false", IN_FORCE,
      "No fp32 master weights; gradients accumulate in bf16. Needs ZeRO stage 1 or more.",
      FIELD(bf16.master_weights_and_grads)),
    B("bf16_optimizer_states", "false", IN_FORCE,
      "Keep the optimizer's averages in bf16. Needs bf16_master_weights_and_grads.",
      FIELD(bf16.optimizer_states)),
    NO_SCALE("loss_scale"),
    NO_SCALE("initial_scale_power"),
    NO_SCALE("loss_scale_window"),
    NO_SCALE("hysteresis"),
    NO_SCALE("consecutive_hysteresis"),
    NO_SCALE("min_loss_scale"),
    ANY("auto_cast", "null", NO_EFFECT, "Cast inputs to bf16.",
        NOTE("inputs are token ids; there is nothing to cast")),
};
const dsi_section dsi_section_bf16 = {
    .path = "bf16",
    .doc = "bfloat16, without loss scaling. Excludes fp16.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_GATED,
    DSI_SECTION_ROWS(bf16_rows),
};

static const dsi_option data_types_rows[] = {
    D("grad_accum_dtype", "null", IN_FORCE,
      "Element type in which gradients of micro-steps are summed. null: fp32 (DeepSpeed: the "
      "model's type).",
      WITH(NULLABLE)),
    D("param_dtype", "null", IN_FORCE,
      "Element type of the parameters; must be that of fp16, bf16 or fp32 as enabled.",
      WITH(NULLABLE)),
    D("buffer_dtype", "null", NO_EFFECT, "Element type of buffers that are no parameters.",
      WITH(NULLABLE), NOTE("models have no floating-point buffers")),
};
const dsi_section dsi_section_data_types = {
    .path = "data_types",
    .doc = "Spellings: fp32, float32, float, torch.float32; fp16, float16, half, torch.float16; "
           "bf16, bfloat16, torch.bfloat16.",
    DSI_SECTION_ROWS(data_types_rows),
};

static const dsi_option amp_rows[] = {
    B("enabled", "false", NOT_BUILT, "Use NVIDIA Apex.", WITH(REQUIRED),
      NOTE("NVIDIA Apex is not available; set amp.enabled to false and use fp16 or bf16")),
};
const dsi_section dsi_section_amp = {
    .path = "amp",
    .doc = "NVIDIA Apex mixed precision; other keys are Apex's own.",
    .flags = DSI_SECTION_OPEN | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(amp_rows),
};

static const dsi_option autocast_rows[] = {
    B("enabled", "false", IN_FORCE,
      "Compute in dtype with fp32 master weights, as bf16.enabled or fp16.enabled do: products, "
      "and what layers pass on (torch.autocast keeps that in fp32; sums are in fp32 here too). "
      "Excludes zero_optimization.zero_quantized_weights."),
    D("dtype", "null", IN_FORCE,
      "bfloat16 or float16. null: bfloat16. float16: with torch's loss scaler (begins at 2^16, "
      "grows after 2000 steps, halves at each overflow), at every stage, unless fp16.enabled is "
      "true.",
      WITH(NULLABLE)),
    TEXTS("lower_precision_safe_modules", NULL, IN_FORCE,
          "Module classes whose gradients and weights travel between ranks in dtype. null: linear "
          "layers and convolutions. A list without torch.nn.Linear: all travel in fp32, unless "
          "communication_data_type says otherwise.",
          WITH(NULLABLE)),
};
const dsi_section dsi_section_autocast = {
    .path = "torch_autocast",
    .doc = "torch.autocast. Both it and bf16 or fp16 of the same type may be enabled.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(autocast_rows),
};
