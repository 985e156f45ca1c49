/* SPDX-License-Identifier: Apache-2.0 */
/* Guides: texts that are and are not of a form; what is refused and how; random schemas against a
 * validator of their own; masks against the same question token by token; no allocation in a mask.
 */
#include "common/check.h"
#include "common/count_allocations.h"
#include "common/guide_text.h"
#include "common/schema_valid.h"

#include <stdlib.h>
#include <string.h>

typedef struct form {
    dsi_guide_kind kind;
    const char *form;
    const char *yes[8], *no[8]; /* whole texts; what no text begins with is broken or goes on */
} form;

static const form forms[] = {
    {DSI_GUIDE_REGEX, "a+b|c{2,3}", {"ab", "aab", "cc", "ccc"}, {"b", "c", "cccc", "abb"}},
    {DSI_GUIDE_REGEX, "[^\\d](\\.[a-f-]+)?$", {"x", "x.a-f"}, {"1", "x.", "x.g", "é"}},
    {DSI_GUIDE_REGEX, "(?:x{0}y|(?<n>z)?){2}", {"", "y", "yy", "z", "zy"}, {"x", "xy", "yyy"}},
    {DSI_GUIDE_REGEX, "[α-ω]{2}.", {"αβ!", "ωωé"}, {"αβ\n", "aβ!"}},
    {DSI_GUIDE_GBNF,
     "# a comment\nroot ::= expr \"=\" [0-9]+ # more\nexpr ::= term (\"+\" term)*\nterm ::= "
     "[a-c\\x2d] |\n  \"(\" expr \")\"\n",
     {"a=1", "(a+b)+c=22", "-=0"},
     {"a", "a+=1", "(a=1", "d=1"}},
    {DSI_GUIDE_GBNF, "root ::= \"a\" root \"b\" | \"\"", {"", "ab", "aabb"}, {"a", "abb", "ba"}},
    {DSI_GUIDE_SCHEMA,
     "{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"}},\"required\":["
     "\"b\"]}",
     {"{\"b\":true}", "{\"a\":-12, \"b\": false }", "  {\n \"a\":0,\"b\":true}"},
     {"{}", "{\"a\":1}", "{\"b\":true,\"a\":1}", "{\"b\":true,\"c\":1}", "{\"a\":01,\"b\":true}"}},
    {DSI_GUIDE_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"ab\":{\"const\":1}},\"additionalProperties\":{"
     "\"type\":"
     "\"null\"}}",
     {"{}", "{\"ab\":1}", "{\"ab\":1,\"a\":null}", "{\"abc\":null,\"é\":null,\"\":null}"},
     {"{\"ab\":null}", "{\"a\":1}", "{\"x\":null,\"ab\":null}", "{\"\\u0061b\":null}"}},
    {DSI_GUIDE_SCHEMA,
     "{\"type\":\"number\",\"exclusiveMinimum\":-0.5,\"maximum\":12}",
     {"-0.4", "-0.49", "0.0", "11.99", "12.0", "7.5"},
     {"-0.5", "-0.50", "12.1", "-1.0", "13.0", "-0.0"}},
    {DSI_GUIDE_SCHEMA,
     "{\"type\":\"integer\",\"minimum\":-17,\"exclusiveMaximum\":205}",
     {"-17", "-9", "0", "99", "204"},
     {"-18", "205", "1000", "-0", "1.0", "00"}},
    {DSI_GUIDE_SCHEMA,
     "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"日本é\"", "\"\\n\\u00e9\"", "\"\\\\\\\"\""},
     {"\"a\"", "\"abcd\"", "\"\\ud800x\"", "\"a\nb\"", "\"\xff\xff\""}},
    {DSI_GUIDE_SCHEMA,
     "{\"type\":\"string\",\"pattern\":\"^[\\\"/\\\\n]+$|q\"}",
     {"\"\\\"\"", "\"/\\n\"", "\"xqy\""},
     {"\"\"", "\"x\"", "\"\"\""}},
    {DSI_GUIDE_SCHEMA,
     "{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"type\":\"null\"}],\"items\":false,"
     "\"minItems\":1}",
     {"[1]", "[1,null]", "[ 1, null ]"},
     {"[]", "[null]", "[1,null,1]", "[1,]"}},
    {DSI_GUIDE_SCHEMA,
     "{\"$ref\":\"#/$defs/a~1b\",\"$defs\":{\"a/"
     "b\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"array\","
     "\"items\":{\"$ref\":\"#\"},\"maxItems\":1}]}}}",
     {"null", "[[null]]", "[]"},
     {"[null,null]", "1"}},
    {DSI_GUIDE_SCHEMA,
     "{\"type\":\"string\",\"format\":\"date\"}",
     {"\"2024-02-28\"", "\"1999-12-31\""},
     {"\"2023-02-29\"", "\"2024-13-01\"", "\"2024-4-01\""}},
    {DSI_GUIDE_SCHEMA,
     "{\"enum\":[\"a\",1,0.1,{\"k\":[null]}]}",
     {"\"a\"", "1", "0.1", "{\"k\":[null]}"},
     {"2", "\"b\"", "{}"}},
    {DSI_GUIDE_SCHEMA,
     "{\"enum\":[\"a\",1],\"type\":[\"string\"]}",
     {"\"a\""},
     {"1", "\"b\"", "\"\""}},
    {DSI_GUIDE_SCHEMA,
     "{\"const\":\"x\",\"type\":[\"string\",\"null\"]}",
     {"\"x\""},
     {"null", "\",\""}},
    {DSI_GUIDE_SCHEMA,
     "{\"enum\":[null,true,2,2.5,[],{}],\"type\":[\"integer\",\"null\",\"array\"]}",
     {"null", "2", "[]"},
     {"true", "2.5", "{}", "3", "[1]"}},
    {DSI_GUIDE_SCHEMA,
     "{\"enum\":[\"a\",\"日本\",\"abc\",1,2.5,null],\"minLength\":2,\"maxLength\":2,"
     "\"exclusiveMinimum\":1}",
     {"\"日本\"", "2.5", "null"},
     {"\"a\"", "\"abc\"", "1"}},
    {DSI_GUIDE_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"}},"
     "\"anyOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}",
     {"{\"a\":null}", "{\"b\":null}", "{\"a\":null,\"b\":null}"},
     {"{}", "null", "{\"c\":1}"}},
    {DSI_GUIDE_SCHEMA,
     "{\"type\":[\"integer\",\"null\"],\"minimum\":3,\"oneOf\":[{\"type\":\"number\",\"maximum\":4}"
     ","
     "{\"type\":[\"string\",\"null\"]}]}",
     {"3", "4", "null"},
     {"2", "5", "3.5", "\"\""}},
    {DSI_GUIDE_SCHEMA, "true", {"1e5", "[{\"a\":[]}]", "\"\""}, {"", "{", "[1,]", "tru"}},
};

static dsi_guide *make(ds_ctx *ctx, const dsi_vocabulary *words, dsi_guide_kind kind,
                       const char *text)
{
    dsi_guide *guide = NULL;
    CHECK_OK(ctx, dsi_guide_create(ctx, words, kind, text, strlen(text), &guide));
    return guide;
}

static bool is_whole(dsi_guide *guide, const char *text)
{
    const dsi_guide_state state = dsi_guide_where_bytes(guide, text, strlen(text));
    return state == DSI_GUIDE_MAY_END || state == DSI_GUIDE_ENDS;
}

static void texts_of_forms(void **state)
{
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; ++i) {
        dsi_guide *guide = make(*state, NULL, forms[i].kind, forms[i].form);
        for (int k = 0; k < 8; ++k) {
            if (forms[i].yes[k] != NULL && !is_whole(guide, forms[i].yes[k])) {
                fail_msg("%s: refuses %s", forms[i].form, forms[i].yes[k]);
            }
            if (forms[i].no[k] != NULL && is_whole(guide, forms[i].no[k])) {
                fail_msg("%s: takes %s", forms[i].form, forms[i].no[k]);
            }
        }
        dsi_guide_destroy(&guide);
    }
}

static void choices(void **state)
{
    static const char *const texts[] = {"yes", "yes, sir", "no"};
    static const size_t sizes[] = {3, 8, 2};
    dsi_guide *guide = NULL;
    CHECK_OK(*state, dsi_guide_of_texts(*state, NULL, texts, sizes, 3, &guide));
    assert_int_equal(dsi_guide_where_bytes(guide, "yes", 3), DSI_GUIDE_MAY_END);
    assert_int_equal(dsi_guide_where_bytes(guide, "no", 2), DSI_GUIDE_ENDS);
    assert_int_equal(dsi_guide_where_bytes(guide, "n", 1), DSI_GUIDE_GOES_ON);
    assert_int_equal(dsi_guide_where_bytes(guide, "not", 3), DSI_GUIDE_BROKEN);
    dsi_guide_destroy(&guide);
}

static void calls(void **state)
{
    static const dsi_call_form calling = {.begin = "<call>{\"n\":\"",
                                          .middle = "\",\"a\":",
                                          .end = "}</call>",
                                          .trigger = "<call>",
                                          .between = "\n"};
    static const dsi_guide_tool tools[] = {{"f", "{\"const\":1}", 11}, {"g", "{\"const\":2}", 11}};
#define F "<call>{\"n\":\"f\",\"a\":1}</call>"
#define G "<call>{\"n\":\"g\",\"a\":2}</call>"
    static const char *const free_texts[] = {"", "a", "<call", "<<call", "<ca<call", "\xff"};
    static const char *const called[] = {F, F "\n" G, F "\n" G "\n" F};
    static const char *const never[] = {"<call>", "<call>x", F "x",
                                        F G,      F "\n",    "<call>{\"n\":\"f\",\"a\":2}</call>"};
    dsi_guide *may = NULL;
    dsi_guide *must = NULL;
    dsi_guide *one = NULL;
    CHECK_OK(*state, dsi_guide_of_calls(*state, NULL, &calling, tools, 2, false, true, &may));
    CHECK_OK(*state, dsi_guide_of_calls(*state, NULL, &calling, tools, 2, true, true, &must));
    CHECK_OK(*state, dsi_guide_of_calls(*state, NULL, &calling, tools, 2, true, false, &one));
    for (size_t i = 0; i < 6; ++i) {
        assert_true(is_whole(may, free_texts[i]));
        assert_false(is_whole(must, free_texts[i]));
        assert_false(is_whole(may, never[i]));
        assert_false(is_whole(must, never[i]));
    }
    for (size_t i = 0; i < 3; ++i) {
        assert_true(is_whole(may, called[i]));
        assert_true(is_whole(must, called[i]));
        assert_int_equal(is_whole(one, called[i]), i == 0);
    }
    assert_true(is_whole(may, "text <c<call" F));
    assert_false(is_whole(must, "text " F));
    dsi_guide_destroy(&may);
    dsi_guide_destroy(&must);
    dsi_guide_destroy(&one);
}

/* ---- refusals ---- */
static const struct {
    dsi_guide_kind kind;
    const char *form, *says;
} wrong[] = {
    {DSI_GUIDE_REGEX, "a(", "does not end"},
    {DSI_GUIDE_REGEX, "a)", "did not begin"},
    {DSI_GUIDE_REGEX, "*a", "nothing to repeat"},
    {DSI_GUIDE_REGEX, "a{3,2}", "m not above n"},
    {DSI_GUIDE_REGEX, "a\\b", "not supported"},
    {DSI_GUIDE_REGEX, "(?=a)b", "looks around"},
    {DSI_GUIDE_REGEX, "(a^)", "outside of groups"},
    {DSI_GUIDE_REGEX, "[z-a]", "before its begin"},
    {DSI_GUIDE_REGEX, "(((a{999}){999}){999}){999}", "too large"},
    {DSI_GUIDE_GBNF, "a ::= \"b\"", "root"},
    {DSI_GUIDE_GBNF, "root ::= b", "not defined"},
    {DSI_GUIDE_GBNF, "root ::= root \"a\" | \"b\"", "begins with itself"},
    {DSI_GUIDE_GBNF, "root ::= e root \"a\" | \"b\"\ne ::= \"x\"*", "begins with itself"},
    {DSI_GUIDE_GBNF, "root ::= \"a\" root", "no text has this form"},
    {DSI_GUIDE_GBNF, "root ::= \"a\nroot ::= \"b\"", "grammar, line"},
    {DSI_GUIDE_SCHEMA, "{", "no JSON"},
    {DSI_GUIDE_SCHEMA, "{\"type\":\"strin\"}", "type"},
    {DSI_GUIDE_SCHEMA, "{\"not\":{}}", "not"},
    {DSI_GUIDE_SCHEMA, "{\"properties\":{\"a\":{\"items\":{\"uniqueItems\":true}}}}",
     "#/properties/a/items: uniqueItems"},
    {DSI_GUIDE_SCHEMA, "{\"type\":\"integer\",\"multipleOf\":3}", "multipleOf"},
    {DSI_GUIDE_SCHEMA, "{\"patternProperties\":{}}", "patternProperties"},
    {DSI_GUIDE_SCHEMA, "{\"type\":\"string\",\"pattern\":\"a\",\"minLength\":1}", "pattern"},
    {DSI_GUIDE_SCHEMA, "{\"type\":\"string\",\"pattern\":\"(\"}", "pattern"},
    {DSI_GUIDE_SCHEMA, "{\"format\":\"color\"}", "format"},
    {DSI_GUIDE_SCHEMA, "{\"$ref\":\"http://a\"}", "$ref"},
    {DSI_GUIDE_SCHEMA, "{\"$ref\":\"#\"}", "$ref"},
    {DSI_GUIDE_SCHEMA, "{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{}},\"type\":\"null\"}", "type"},
    {DSI_GUIDE_SCHEMA, "{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "oneOf"},
    {DSI_GUIDE_SCHEMA,
     "{\"anyOf\":[{\"items\":{\"type\":\"null\"}}],\"prefixItems\":[{\"type\":\"integer\"}]}",
     "prefixItems"},
    {DSI_GUIDE_SCHEMA, "{\"anyOf\":[{\"type\":\"string\"}],\"type\":\"null\"}",
     "no text has this form"},
    {DSI_GUIDE_SCHEMA, "{\"enum\":[1,2],\"minimum\":\"a\"}", "minimum"},
    {DSI_GUIDE_SCHEMA, "{\"enum\":[\"a\"],\"pattern\":\"a\"}", "pattern"},
    {DSI_GUIDE_SCHEMA, "{\"enum\":[\"a\"],\"minLength\":2}", "no text has this form"},
    {DSI_GUIDE_SCHEMA, "{\"type\":\"number\",\"minimum\":3,\"maximum\":2}", "minimum"},
    {DSI_GUIDE_SCHEMA, "{\"required\":[\"a\"],\"additionalProperties\":false}", "required"},
    {DSI_GUIDE_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
     "no text has this form"},
    {DSI_GUIDE_SCHEMA, "false", "no text has this form"},
};

static void refusals(void **state)
{
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
        dsi_guide *guide = NULL;
        check_fails(*state,
                    dsi_guide_create(*state, NULL, wrong[i].kind, wrong[i].form,
                                     strlen(wrong[i].form), &guide),
                    DS_ERR_ARG, wrong[i].says, wrong[i].form);
    }
}

/* ---- random schemas ---- */
static void random_schema(ds_ctx *ctx, const dsi_vocabulary *words, uint64_t k, int *whole)
{
    json_t *schema = schema_random(k);
    char *text = json_dumps(schema, JSON_COMPACT);
    dsi_guide *guide = make(ctx, words, DSI_GUIDE_SCHEMA, text);
    for (uint64_t seed = 0; seed < 3; ++seed) {
        dsi_buf out = dsi_buf_make(1 << 20);
        const char *why = "";
        if (guide_text_draw(guide, words, k * 3 + seed, 600, &out)) {
            json_t *value = json_loadb(out.data, out.size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
            if (value == NULL || !schema_valid(schema, schema, value, &why)) {
                fail_msg("%s\n%s\n%s", text, dsi_buf_text(&out), why);
            }
            json_decref(value);
            *whole += 1;
        }
        dsi_buf_free(&out);
    }
    dsi_guide_destroy(&guide);
    free(text);
    json_decref(schema);
}

static void random_schemas(void **state)
{
    dsi_vocabulary *words = NULL;
    int whole = 0;
    int asked = 0;
    CHECK_OK(*state, guide_words_make(*state, &words));
    for (uint64_t k = 0; k < 500; ++k) {
        if (check_long_row(k)) {
            random_schema(*state, words, k, &whole);
            asked += 3;
        }
    }
    assert_true(whole * 10 > asked * 9);
    dsi_vocabulary_destroy(&words);
}

/* The validator finds fault with values that are of no schema: it can fail. */
static void validator_fails(void **state)
{
    int valid = 0;
    (void)state;
    for (uint64_t k = 0; k < 200; ++k) {
        json_t *schema = schema_random(k);
        json_t *value = json_pack("[{s:f}]", "zz", 1e6 + 0.5);
        const char *why = NULL;
        valid += schema_valid(schema, schema, value, &why);
        json_decref(value);
        json_decref(schema);
    }
    assert_in_range(valid, 0, 30);
}

/* ---- masks ---- */
/* A mask is what the grammar says of each token by itself; also when much must be dropped. */
static void masks_are_exact(void **state)
{
    dsi_vocabulary *words = NULL;
    CHECK_OK(*state, guide_words_make(*state, &words));
    const uint32_t n = words->n;
    const uint32_t end = guide_words_end(words);
    float *logits = malloc(n * sizeof *logits);
    uint32_t ids[64];
    for (uint64_t k = 0; k < 40; ++k) {
        json_t *schema = schema_random(k);
        char *text = json_dumps(schema, JSON_COMPACT);
        dsi_guide *guide = make(*state, words, DSI_GUIDE_SCHEMA, text);
        size_t n_ids = 0;
        uint64_t seed = k;
        while (n_ids < 30 && dsi_guide_where(guide, ids, n_ids) != DSI_GUIDE_ENDS) {
            memset(logits, 0, n * sizeof *logits);
            dsi_guide_mask(guide, ids, n_ids, &end, 1, logits, n);
            const bool may_end = dsi_guide_where(guide, ids, n_ids) == DSI_GUIDE_MAY_END;
            assert_int_equal(logits[end] == 0.0f, may_end);
            uint32_t allowed = 0;
            for (uint32_t id = 0; id < n - 1; ++id) {
                ids[n_ids] = id;
                const bool may = dsi_guide_where(guide, ids, n_ids + 1) != DSI_GUIDE_BROKEN;
                assert_int_equal(logits[id] == 0.0f, may);
                allowed += may;
            }
            uint32_t pick = allowed > 0 ? schema_below(&seed, allowed) : 0;
            for (uint32_t id = 0; id < n - 1 && allowed > 0; ++id) {
                if (logits[id] == 0.0f && pick-- == 0) {
                    ids[n_ids] = id;
                    break;
                }
            }
            n_ids += allowed > 0;
            if (allowed == 0) {
                break;
            }
        }
        dsi_guide_destroy(&guide);
        free(text);
        json_decref(schema);
    }
    free(logits);
    dsi_vocabulary_destroy(&words);
}

/* More positions than are kept: a long counted text, read again and again; and no allocation. */
static void positions_are_dropped(void **state)
{
    dsi_vocabulary *words = NULL;
    CHECK_OK(*state, guide_words_make(*state, &words));
    dsi_guide *guide = make(*state, words, DSI_GUIDE_REGEX, "([ab]{9000})c");
    uint32_t *ids = malloc(9001 * sizeof *ids);
    float *logits = calloc(words->n, sizeof *logits);
    for (uint32_t i = 0; i < 9001; ++i) {
        ids[i] = i % 3 == 0 ? 'a' : 'b';
    }
    ids[9000] = 'c';
#if CAN_COUNT_ALLOCATIONS
    count_begin();
#endif
    assert_int_equal(dsi_guide_where(guide, ids, 9001), DSI_GUIDE_ENDS);
    assert_int_equal(dsi_guide_where(guide, ids, 8999), DSI_GUIDE_GOES_ON);
    dsi_guide_mask(guide, ids, 9000, NULL, 0, logits, words->n);
#if CAN_COUNT_ALLOCATIONS
    assert_int_equal(count_end(), 0);
#endif
    for (uint32_t id = 0; id < words->n; ++id) {
        assert_int_equal(logits[id] == 0.0f, id == 'c');
    }
    ids[4000] = 'c';
    assert_int_equal(dsi_guide_where(guide, ids, 9001), DSI_GUIDE_BROKEN);
    free(ids);
    free(logits);
    dsi_guide_destroy(&guide);
    dsi_vocabulary_destroy(&words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_of_forms),  cmocka_unit_test(choices),
        cmocka_unit_test(calls),           cmocka_unit_test(refusals),
        cmocka_unit_test(random_schemas),  cmocka_unit_test(validator_fails),
        cmocka_unit_test(masks_are_exact), cmocka_unit_test(positions_are_dropped),
    };
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
