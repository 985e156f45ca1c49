/* SPDX-License-Identifier: Apache-2.0 */
/* Every public header of the library. Each can also be included by itself; the README has the order
 * to read them in. */
#ifndef DEEPSPEED_DEEPSPEED_H
#define DEEPSPEED_DEEPSPEED_H

#include <deepspeed/accel.h>
#include <deepspeed/adapter.h>
#include <deepspeed/aio.h>
#include <deepspeed/chat.h>
#include <deepspeed/checkpoint.h>
#include <deepspeed/comm.h>
#include <deepspeed/config.h>
#include <deepspeed/context.h>
#include <deepspeed/cuda_kernel.h>
#include <deepspeed/data.h>
#include <deepspeed/distillation.h>
#include <deepspeed/elasticity.h>
#include <deepspeed/encoder.h>
#include <deepspeed/engine.h>
#include <deepspeed/engine_states.h>
#include <deepspeed/gguf.h>
#include <deepspeed/graph.h>
#include <deepspeed/hf_export.h>
#include <deepspeed/hub.h>
#include <deepspeed/infer.h>
#include <deepspeed/mii.h>
#include <deepspeed/model.h>
#include <deepspeed/monitor.h>
#include <deepspeed/nn.h>
#include <deepspeed/op.h>
#include <deepspeed/packing.h>
#include <deepspeed/place.h>
#include <deepspeed/plan.h>
#include <deepspeed/preference.h>
#include <deepspeed/preference_engine.h>
#include <deepspeed/profile.h>
#include <deepspeed/safetensors.h>
#include <deepspeed/schedule.h>
#include <deepspeed/serve.h>
#include <deepspeed/status.h>
#include <deepspeed/tensor.h>
#include <deepspeed/tokenizer.h>
#include <deepspeed/unmerge.h>
#include <deepspeed/version.h>

#endif
