/* Which chat template a canonical Jinja text is.
 *
 * Called by ds_chat_create. The parts of a text tell its family and its options; the digest of the
 * whole tells that it is a known one. Any other text is refused rather than guessed.
 */
#include "data/chat_template.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define IM_MESSAGE "{{'<|im_start|>'+message.role+'\n'+message.content+'<|im_end|>\n'}}"
#define IM_PROMPT  "{%if add_generation_prompt%}{{'<|im_start|>assistant\n'}}{%endif%}"
#define L3_HEADER  "'<|start_header_id|>'+message.role+'<|end_header_id|>\n\n'"
#define L3_PROMPT  "{{'<|start_header_id|>assistant<|end_header_id|>\n\n'}}"

/* Matches text at *at against a pattern with one '*' at most, which takes text without a quote. */
static bool matches(const char **at, const char *pattern, const char **star_out, size_t *n_out)
{
    const char *p = *at;
    const char *star = strchr(pattern, '*');
    const size_t n_head = star != NULL ? (size_t)(star - pattern) : strlen(pattern);
    if (strncmp(p, pattern, n_head) != 0) {
        return false;
    }
    p += n_head;
    if (star != NULL) {
        const char *tail = star + 1;
        const char *stop = strstr(p, tail);
        if (stop == NULL || memchr(p, '\'', (size_t)(stop - p)) != NULL) {
            return false;
        }
        *star_out = p;
        *n_out = (size_t)(stop - p);
        p = stop + strlen(tail);
    }
    *at = p;
    return true;
}

/* The same for a pattern anywhere in the text. */
static bool contains(const char *text, const char *pattern, const char **star_out, size_t *n_out)
{
    const char *star = strchr(pattern, '*');
    char head[256];
    const size_t n_head = star != NULL ? (size_t)(star - pattern) : strlen(pattern);
    if (n_head >= sizeof head) {
        return false;
    }
    memcpy(head, pattern, n_head);
    head[n_head] = '\0';
    for (const char *at = strstr(text, head); at != NULL; at = strstr(at + 1, head)) {
        const char *p = at;
        if (matches(&p, pattern, star_out, n_out)) {
            return true;
        }
    }
    return false;
}

static bool has(const char *text, const char *part)
{
    return strstr(text, part) != NULL;
}

static bool has_all(const char *text, const char *const *parts)
{
    for (; *parts != NULL; ++parts) {
        if (!has(text, *parts)) {
            return false;
        }
    }
    return true;
}

static bool has_any(const char *text, const char *const *parts)
{
    for (; *parts != NULL; ++parts) {
        if (has(text, *parts)) {
            return true;
        }
    }
    return false;
}

static bool ends_with(const char *text, const char *tail)
{
    const size_t n = strlen(text);
    const size_t n_tail = strlen(tail);
    return n >= n_tail && strcmp(text + n - n_tail, tail) == 0;
}

static bool use(dsi_chat_form *form, const char *name)
{
    *form = *dsi_chat_form_by_name(name);
    return true;
}

static bool chatml_or_qwen2(const char *text, dsi_chat_form *form)
{
    const char *at = text;
    const char *star = NULL;
    size_t n = 0;
    (void)matches(&at,
                  "{%if not add_generation_prompt is defined%}{%set add_generation_prompt=false%}"
                  "{%endif%}",
                  &star, &n);
    const bool bos = matches(&at, "{{bos_token}}", &star, &n);
    if (!matches(&at, "{%for message in messages%}", &star, &n)) {
        return false;
    }
    const bool qwen2 = matches(&at,
                               "{%if loop.first and messages[0].role!='system'%}"
                               "{{'<|im_start|>system\n*<|im_end|>\n'}}{%endif%}",
                               &star, &n);
    if (strcmp(at, IM_MESSAGE "{%endfor%}" IM_PROMPT) != 0) {
        return false;
    }
    (void)use(form, qwen2 ? "qwen2" : "chatml");
    form->bos_first = bos;
    form->needs_bos = bos;
    if (qwen2) {
        form->system_text = star;
        form->system_size = n;
    }
    return true;
}

static bool qwen25(const char *text, dsi_chat_form *form)
{
    static const char *const parts[] = {
        "{%if(message.role=='user')or(message.role=='system'and not loop.first)"
        "or(message.role=='assistant'and not message.tool_calls)%}" IM_MESSAGE,
        "<tool_response>", NULL};
    static const char *const others[] = {"think", "image", "strip", "trim", "bos_token", NULL};
    const char *star = NULL;
    size_t n = 0;
    if (!has_all(text, parts) || has_any(text, others) || !ends_with(text, IM_PROMPT) ||
        !contains(text,
                  "{%if messages[0].role=='system'%}"
                  "{{'<|im_start|>system\n'+messages[0].content+'<|im_end|>\n'}}"
                  "{%else%}{{'<|im_start|>system\n*<|im_end|>\n'}}{%endif%}",
                  &star, &n)) {
        return false;
    }
    (void)use(form, "qwen2.5");
    form->system_text = star;
    form->system_size = n;
    return true;
}

static bool qwen3(const char *text, dsi_chat_form *form)
{
    static const char *const common[] = {
        "{%if messages[0].role=='system'%}"
        "{{'<|im_start|>system\n'+messages[0].content+'<|im_end|>\n'}}{%endif%}{%endif%}",
        "{%if(message.role=='user')or(message.role=='system'and not loop.first)%}",
        "{{'<|im_start|>'+message.role+'\n'+content}}", "\n<tool_response>\n", NULL};
    static const char *const thinking[] = {
        "'</think>'",
        "ns.last_query_index",
        "{%if loop.index0>ns.last_query_index%}",
        "{%if loop.last or(not loop.last and reasoning_content)%}",
        "{{'<|im_start|>'+message.role+'\n<think>\n'+reasoning_content.strip('\n')+"
        "'\n</think>\n\n'+content.lstrip('\n')}}",
        "{%if add_generation_prompt%}{{'<|im_start|>assistant\n'}}"
        "{%if enable_thinking is defined and enable_thinking is false%}"
        "{{'<think>\n\n</think>\n\n'}}{%endif%}{%endif%}",
        NULL};
    static const char *const others[] = {"image", "preserve_thinking", "reasoning_effort",
                                         "|trim", "raise_exception",   NULL};
    static const char *const thoughts[] = {"think", "reasoning", NULL};
    if (!has_all(text, common) || has_any(text, others)) {
        return false;
    }
    if (has_all(text, thinking)) {
        return use(form, "qwen3");
    }
    return !has_any(text, thoughts) && ends_with(text, IM_PROMPT) && use(form, "qwen3-2507");
}

static bool llama3(const char *text, dsi_chat_form *form)
{
    const char *const first = "{%set loop_messages=messages%}{%for message in loop_messages%}"
                              "{%set content=" L3_HEADER "+message.content|trim+'<|eot_id|>'%}"
                              "{%if loop.index0==0%}{%set content=bos_token+content%}{%endif%}"
                              "{{content}}{%endfor%}";
    const char *at = text;
    const char *star;
    size_t n;
    if (matches(&at, first, &star, &n)) {
        const bool asked = strcmp(at, "{%if add_generation_prompt%}" L3_PROMPT "{%endif%}") == 0;
        (void)use(form, "llama3");
        form->always_prompt = !asked;
        return asked || strcmp(at, L3_PROMPT) == 0;
    }
    static const char *const parts[] = {
        "{{bos_token}}",
        "{%set system_message=messages[0].content|trim%}",
        "{{'<|start_header_id|>system<|end_header_id|>\n\n'}}",
        "{{'Cutting Knowledge Date: December 2023\n'}}{{'Today Date: '+date_string+'\n\n'}}",
        "{{system_message}}{{'<|eot_id|>'}}",
        "{{" L3_HEADER "+message.content|trim+'<|eot_id|>'}}",
        "{%set date_string='26 Jul 2024'%}",
        "{%if add_generation_prompt%}" L3_PROMPT "{%endif%}",
        NULL};
    if (!has_all(text, parts)) {
        return false;
    }
    return has(text, "strftime_now")
               ? has(text, "{%set date_string=strftime_now('%d %b %Y')%}") && use(form, "llama3.2")
               : use(form, "llama3.1");
}

static bool llama2(const char *text, dsi_chat_form *form)
{
    static const char *const parts[] = {
        "{%if messages[0].role=='system'%}{%set loop_messages=messages[1:]%}"
        "{%set system_message=messages[0].content%}",
        "{%set system_message=false%}",
        "{%if(message.role=='user')!=(loop.index0%2==0)%}{{raise_exception(",
        "{%if loop.index0==0 and system_message!=false%}"
        "{%set content='<<SYS>>\n'+system_message+'\n<</SYS>>\n\n'+message.content%}",
        "{{bos_token+'[INST] '+content.strip()+' [/INST]'}}",
        "{{' '+content.strip()+' '+eos_token}}",
        NULL};
    static const char *const others[] = {"true==true", "add_generation_prompt", NULL};
    return has_all(text, parts) && !has_any(text, others) && use(form, "llama2");
}

/* The forms by what stands around a user's text; the rest may differ from release to release. */
static bool mistral_user(const char *text, dsi_chat_form *form)
{
    static const char *const names[] = {"mistral-v0.2", "mistral-v1", "mistral-v3",
                                        "mistral-tekken"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        const dsi_mistral_form *m = &dsi_chat_form_by_name(names[i])->mistral;
        char user[128];
        (void)snprintf(user, sizeof user, "{{'%s'+message.content+'%s'}}", m->open, m->close);
        if (has(text, user)) {
            return use(form, names[i]);
        }
    }
    return false;
}

static bool mistral_answer(const char *text, dsi_chat_form *form)
{
    for (unsigned i = 0; i < 8; ++i) {
        dsi_mistral_form m = form->mistral;
        m.answer = i & 1 ? " " : "";
        m.trim = (i & 2) != 0;
        m.space_after_eos = (i & 4) != 0;
        char answer[128];
        (void)snprintf(answer, sizeof answer, "{{%smessage.content%s+eos_token%s}}",
                       i & 1 ? "' '+" : "", m.trim ? "|trim" : "", m.space_after_eos ? "+' '" : "");
        if (has(text, answer)) {
            form->mistral = m;
            return true;
        }
    }
    return false;
}

static bool mistral_system(const char *text, dsi_chat_form *form)
{
    static const char *const places[] = {NULL, "first", "last"};
    form->mistral.system = DSI_SYSTEM_REFUSE;
    if (!has(text, "system")) {
        return true;
    }
    for (unsigned i = DSI_SYSTEM_FIRST; i <= DSI_SYSTEM_LAST; ++i) {
        char system[192];
        (void)snprintf(system, sizeof system,
                       "{%%if loop.%s and system_message is defined%%}"
                       "{{'%s'+system_message+'\n\n'+message.content+'%s'}}",
                       places[i], form->mistral.open, form->mistral.close);
        if (has(text, system)) {
            form->mistral.system = (dsi_chat_system)i;
            return true;
        }
    }
    return false;
}

static bool mistral(const char *text, dsi_chat_form *form)
{
    static const char *const others[] = {"<<SYS>>", "[SYSTEM_PROMPT]", "add_generation_prompt",
                                         "default_system", NULL};
    if (has_any(text, others) || !has(text, "{{bos_token}}{%for message in ") ||
        !has(text, "raise_exception(") || !mistral_user(text, form) ||
        !mistral_answer(text, form) || !mistral_system(text, form)) {
        return false;
    }
    if (form->mistral.space_after_eos && form->mistral.system == DSI_SYSTEM_REFUSE) {
        form->name = "mistral-v0.1";
    }
    return true;
}

/* Digests of the templates that the forms were compared with, as a whole: a text that only
 * resembles one of them is another template. The default system message, which the form takes from
 * the text, is left out of its digest. */
/* clang-format off */
static const uint64_t known[] = {
    0x8757b2172c91f640u, /* chatml-bos */
    0x37bf5ffe663c2289u, /* chatml-comment */
    0x08731f08ed2fb18du, /* chatml-dolphin */
    0xb2e6611c857a76b9u, /* llama2-default-flag */
    0x850d4bf4f80a259bu, /* llama2 */
    0xe6fdd325056cd99fu, /* llama3-first */
    0xc67bdad3c6de3dc8u, /* llama3.1 */
    0x1b5b4f8a5f16119eu, /* llama3.2 */
    0x68406fcb460e25d6u, /* llama3 */
    0x18896b0ca0061a63u, /* mistral-tekken-older */
    0xf376edb82c50ccbau, /* mistral-tekken */
    0xab688bc52605a416u, /* mistral-v0.1 */
    0x0bdddcb71e8295b3u, /* mistral-v0.2 */
    0x0505755e3d90893cu, /* mistral-v1-last */
    0xa418b9e1ba064eedu, /* mistral-v1 */
    0xa4cbc1d52d8239fbu, /* mistral-v3-untrimmed */
    0x6759c9d3fbf2036eu, /* mistral-v3 */
    0xb61b3ec778cce075u, /* qwen2.5-math */
    0x04ddd16de34d659fu, /* qwen2.5 */
    0x68f41b282f366814u, /* qwen2 */
    0xfbba18eb5f964472u, /* qwen3-2507 */
    0x798dd2b8e2d43e66u, /* qwen3 */
};
/* clang-format on */

static uint64_t digest_of(const char *canonical, const dsi_chat_form *form)
{
    const char *text = form->system_text;
    const size_t n = strlen(canonical);
    const bool within = text >= canonical && text <= canonical + n;
    const size_t n_head = within ? (size_t)(text - canonical) : n;
    const XXH64_hash_t head = XXH3_64bits(canonical, n_head);
    return within ? XXH3_64bits_withSeed(text + form->system_size, n - n_head - form->system_size,
                                         head)
                  : head;
}

static bool is_known(const char *canonical, const dsi_chat_form *form)
{
    const uint64_t digest = digest_of(canonical, form);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i) {
        if (known[i] == digest) {
            return true;
        }
    }
    return false;
}

bool dsi_chat_recognise(const char *canonical, dsi_chat_form *form)
{
    return (chatml_or_qwen2(canonical, form) || qwen25(canonical, form) || qwen3(canonical, form) ||
            llama3(canonical, form) || llama2(canonical, form) || mistral(canonical, form)) &&
           is_known(canonical, form);
}
