/* SPDX-License-Identifier: Apache-2.0 */
/* The built-in chat templates, for models whose files have none. See chat.h.
 *
 * Written for this project after the formats of the model families, for chats without tools: what a
 * format has no place for is raised, not left out.
 */
#include "data/chat_template.h"

#include <stdio.h>
#include <string.h>

#define IM_MESSAGE "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
#define IM_SYSTEM(text)                                                                            \
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\n" text "<|im_end|>\\n' }}"      \
    "{% endif %}"
#define IM_PROMPT "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
/* Neighbouring results of tools share a user's turn. */
#define IM_TOOL                                                                                    \
    "{% if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"       \
    "{{ '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"                            \
    "{% if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}"
#define QWEN(answer)                                                                               \
    "{% for m in messages %}{% if m.role in ['user', 'system'] %}" IM_MESSAGE                      \
    "{% elif m.role == 'assistant' %}" answer "{% elif m.role == 'tool' %}" IM_TOOL                \
    "{% endif %}{% endfor %}"

/* Thoughts are kept only after the question in hand. */
#define QWEN3_QUERY                                                                                \
    "{% set ns = namespace(query=messages|length - 1, found=false) %}"                             \
    "{% for m in messages|reverse %}{% if not ns.found and m.role == 'user' and not "              \
    "(m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) %}"      \
    "{% set ns.found = true %}{% set ns.query = messages|length - loop.index %}{% endif %}"        \
    "{% endfor %}"
#define QWEN3_ANSWER                                                                               \
    "{% set parts = m.content.split('</think>') %}{% set thoughts = '' %}"                         \
    "{% set said = m.content %}{% if parts|length > 1 %}"                                          \
    "{% set thoughts = parts[0].rstrip('\\n').split('<think>')[-1].strip('\\n') %}"                \
    "{% set said = parts[-1].lstrip('\\n') %}{% endif %}{{ '<|im_start|>assistant\\n' }}"          \
    "{% if loop.index0 > ns.query and (loop.last or thoughts) %}"                                  \
    "{{ '<think>\\n' + thoughts + '\\n</think>\\n\\n' + said.lstrip('\\n') }}"                     \
    "{% else %}{{ said }}{% endif %}{{ '<|im_end|>\\n' }}"
#define QWEN3_PROMPT                                                                               \
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"                               \
    "{% if enable_thinking is defined and enable_thinking is false %}"                             \
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"

#define L3_OPEN(role) "'<|start_header_id|>' + " role " + '<|end_header_id|>\\n\\n'"
#define L3_PROMPT     "{% if add_generation_prompt %}{{ " L3_OPEN("'assistant'") " }}{% endif %}"
#define L3_DATED(date)                                                                             \
    "{{ bos_token + " L3_OPEN(                                                                     \
        "'system'") " + 'Cutting Knowledge Date: December 2023\\n"                                 \
                    "Today Date: ' + " date " + '\\n\\n' }}{% set rest = messages %}"              \
                    "{% if messages[0].role == 'system' %}{{ messages[0].content|trim }}"          \
                    "{% set rest = messages[1:] %}{% endif %}{{ '<|eot_id|>' }}"                   \
                    "{% for m in rest %}{% if m.role in ['tool', 'ipython'] %}"                    \
                    "{{ " L3_OPEN("'ipython'") " + m.content|tojson + '<|eot_id|>' }}"             \
                                               "{% else %}{{ " L3_OPEN(                            \
                                                   "m.role") " + m.content|trim + '<|eot_id|>' "   \
                                                             "}}{% endif %}"                       \
                                                             "{% endfor %}" L3_PROMPT

/* Users and assistants take turns from `first` on, the user first. */
#define WHO "'messages[' ~ (first + loop.index0) ~ '] (role \"' ~ m.role ~ '\") does not fit: "
#define TURNS                                                                                      \
    "{% if m.role not in ['user', 'assistant'] %}{{ raise_exception(" WHO                          \
    "it knows the roles system (as the first), user and assistant') }}{% endif %}"                 \
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception(" WHO                 \
    "user and assistant alternate, the user first') }}{% endif %}"
#define AFTER_SYSTEM                                                                               \
    "{% set first = 1 if messages[0].role == 'system' else 0 %}"                                   \
    "{% for m in messages[first:] %}" TURNS

#define LLAMA2                                                                                     \
    AFTER_SYSTEM                                                                                   \
    "{% if m.role == 'user' %}{% set text = m.content %}"                                          \
    "{% if loop.first and first == 1 %}{% set text = '<<SYS>>\\n' + "                              \
    "messages[0].content + '\\n<</SYS>>\\n\\n' + m.content %}{% endif %}"                          \
    "{{ bos_token + '[INST] ' + text.strip() + ' [/INST]' }}"                                      \
    "{% else %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"

#define NO_SYSTEM                                                                                  \
    "{% if messages[0].role == 'system' %}{{ raise_exception('messages[0] (role \"system\") "      \
    "does not fit: it takes no system message') }}{% endif %}"
/* Mistral's templates differ in white space and in the place of the system message. */
#define MISTRAL(open, close, here, answer)                                                         \
    "{{ bos_token }}" AFTER_SYSTEM "{% if m.role == 'user' %}{{ '" open "' }}"                     \
    "{% if first == 1 and " here " %}{{ messages[0].content + '\\n\\n' }}{% endif %}"              \
    "{{ m.content + '" close "' }}{% else %}{{ " answer " }}{% endif %}{% endfor %}"

/* clang-format off */
static const struct { const char *name, *text; } builtin[] = {
    {"chatml", "{% for m in messages %}" IM_MESSAGE "{% endfor %}" IM_PROMPT},
    {"llama2", LLAMA2},
    {"llama3", "{{ bos_token }}{% for m in messages %}{{ " L3_OPEN("m.role")
               " + m.content|trim + '<|eot_id|>' }}{% endfor %}" L3_PROMPT},
    {"llama3.1", L3_DATED("'26 Jul 2024'")},
    {"llama3.2", L3_DATED("strftime_now('%d %b %Y')")},
    {"mistral-v0.1", NO_SYSTEM MISTRAL("[INST] ", " [/INST]", "true", "m.content + eos_token + ' '")},
    {"mistral-v0.2", NO_SYSTEM MISTRAL("[INST] ", " [/INST]", "true", "m.content + eos_token")},
    {"mistral-v1", MISTRAL(" [INST] ", " [/INST]", "loop.first", "' ' + m.content + eos_token")},
    {"mistral-v3", MISTRAL("[INST] ", "[/INST]", "loop.last", "' ' + m.content|trim + eos_token")},
    {"mistral-tekken", MISTRAL("[INST]", "[/INST]", "loop.last", "m.content + eos_token")},
    {"qwen2", IM_SYSTEM("You are a helpful assistant.") "{% for m in messages %}" IM_MESSAGE
              "{% endfor %}" IM_PROMPT},
    {"qwen2.5", IM_SYSTEM("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.")
                QWEN(IM_MESSAGE) IM_PROMPT},
    {"qwen3", QWEN3_QUERY QWEN(QWEN3_ANSWER) QWEN3_PROMPT},
    {"qwen3-2507", QWEN(IM_MESSAGE) IM_PROMPT},
};
static const char *const names[] = {
    "chatml", "llama2", "llama3", "llama3.1", "llama3.2", "mistral-v0.1", "mistral-v0.2",
    "mistral-v1", "mistral-v3", "mistral-tekken", "qwen2", "qwen2.5", "qwen3", "qwen3-2507", NULL};
/* clang-format on */

const char *const *ds_chat_names(void)
{
    return names;
}

const char *dsi_chat_builtin(const char *name)
{
    for (size_t i = 0; i < sizeof builtin / sizeof builtin[0]; ++i) {
        if (strcmp(builtin[i].name, name) == 0) {
            return builtin[i].text;
        }
    }
    return NULL;
}
