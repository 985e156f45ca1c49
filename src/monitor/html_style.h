/* SPDX-License-Identifier: Apache-2.0 */
/* The style sheet and the script of every page. */
#ifndef DSI_MONITOR_HTML_STYLE_H
#define DSI_MONITOR_HTML_STYLE_H

extern const char *const dsi_html_style[]; /* pieces; NULL ends */
extern const char dsi_html_script[];

#endif
