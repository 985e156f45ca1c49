/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of DeepSpeed-MII's serve, pipeline and MIIConfig as a file: those of the deployment and
 * of the model, which may also stand in `model_config`. See table_inference.c. */
#include "config/option_rows.h"

#define PORTS NOTE("ranks meet at the launcher's address")
#define PLACE NOTE("it names CUDA devices; hosts come from hostfile")

#define MODEL_ROWS                                                                                 \
    T("model_name_or_path", "null", IN_FORCE, "Model: --model where no flag names it.",            \
      WITH(NULLABLE), FIELD(inference.model)),                                                     \
        T("tokenizer", "null", IN_FORCE, "Tokenizer; default: the model's.", WITH(NULLABLE),       \
          FIELD(inference.tokenizer)),                                                             \
        E("task", "\"text-generation\"", IN_FORCE, "What the model does.",                         \
          .choices = "text-generation", WITH(NULLABLE)),                                           \
        I("tensor_parallel", "1", IN_FORCE,                                                        \
          "Ranks that share each layer: as many as are started. Where the file says nothing, all " \
          "do.",                                                                                   \
          MIN(1)),                                                                                 \
        E("quantization_mode", "null", IN_FORCE, "As in the engine's quantization.",               \
          WITH(NULLABLE), .choices = "wf6af16"),                                                   \
        S("inference_engine_config", NULL, IN_FORCE, "A file of version 2.",                       \
          .section = &dsi_section_inference_v2),                                                   \
        I("torch_dist_port", "29500", NO_EFFECT, "Port of PyTorch's ranks.", PORTS),               \
        I("zmq_port_number", "25555", NO_EFFECT, "Port of ZeroMQ.", PORTS),                        \
        I("replica_num", "1", IN_FORCE, "Replicas behind one address (--replicas).", MIN(1),       \
          MAX(1024), FIELD(inference.replicas)),                                                   \
        LIST("replica_configs", "[]", NOT_BUILT, "Hosts, CUDA devices and ports of each replica.", \
             PLACE),                                                                               \
        ANY("device_map", "\"auto\"", NOT_BUILT, "CUDA devices of each replica.", PLACE),          \
        I("max_length", "null", IN_FORCE, "Most tokens, prompt included.", MIN(1), WITH(NULLABLE), \
          FIELD(inference.max_length)),                                                            \
        B("all_rank_output", "false", NO_EFFECT, "All ranks have the texts.",                      \
          NOTE("rank 0 answers")),                                                                 \
        B("sync_debug", "false", NO_EFFECT, "Wait for CUDA behind each step.",                     \
          NOTE("it waits for CUDA's streams")),                                                    \
        B("profile_model_time", "false", NO_EFFECT, "Log the times of steps.",                     \
          NOTE("/metrics has them"))

static const dsi_option model_rows[] = {MODEL_ROWS};
static const dsi_section model = {
    .path = "mii.model_config",
    .doc = "The model.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(model_rows),
};
#define AML NOTE("it is about Azure's machine learning service")
static const dsi_option rows[] = {
    MODEL_ROWS,
    S("model_config", NULL, IN_FORCE, "The same keys of the model.", .section = &model),
    T("deployment_name", "\"\"", IN_FORCE, "What clients call the model (--served_model_name).",
      FIELD(inference.deployment)),
    E("deployment_type", "\"local\"", NOT_BUILT, "Where it runs.", .choices = "local|aml",
      WITH(ANY_CASE), AML),
    I("port_number", "50050", NO_EFFECT, "Port of gRPC.",
      NOTE("there is no gRPC: restful_api_port is where clients ask"), MIN(0), MAX(65535)),
    B("enable_restful_api", "false", IN_FORCE,
      "restful_api_host and restful_api_port are in force.", FIELD(inference.restful)),
    T("restful_api_host", "\"localhost\"", IN_FORCE, "Address of the server (--host).",
      FIELD(inference.address)),
    I("restful_api_port", "51080", IN_FORCE, "Its port (--port).", MIN(0), MAX(65535),
      FIELD(inference.port)),
    I("restful_processes", "32", NO_EFFECT, "Processes of the REST gateway.", MIN(1),
      NOTE("one thread answers all connections")),
    T("hostfile", "\"/job/hostfile\"", IN_FORCE,
      "Hosts of replicas (--hostfile), where it is there.", FIELD(inference.hostfile)),
    I("version", "1", NO_EFFECT, "Version for Azure.", AML),
    T("instance_type", "\"Standard_NC12s_v3\"", NO_EFFECT, "Machine for Azure.", AML),
};
const dsi_section dsi_section_mii = {
    .path = "mii",
    .title = "Inference by DeepSpeed-MII: arguments of serve and pipeline",
    .doc = "As those of init_inference; checked by `ds_config check --kind mii`.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(rows),
};
