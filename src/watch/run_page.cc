#include "watch/run_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/quantity_text.h"
#include "base/visible_text.h"
#include "base/xml_text.h"
#include "watch/line_chart.h"
#include "watch/rank_text.h"
#include "watch/run_screen.h"
#include "watch/smoothed_curve.h"
#include "watch/sweep_section.h"

namespace cotune {
namespace {

// Colour-blind safe (Okabe and Ito 2008).
constexpr const char* style = R"(
:root{color-scheme:light dark;--ink:#1c2430;--soft:#5c6672;--line:#dde2e8;--card:#fff;--page:#f5f6f8}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#9aa4b0;--line:#343c47;--card:#1d232b;--page:#14181e}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);margin:0 auto;max-width:1240px;padding:24px}
h1{font-size:22px;margin:0}h2{font-size:17px;margin:32px 0 12px}p,.soft{color:var(--soft);margin:4px 0}
.tiles,.charts{display:grid;gap:12px;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));margin-top:16px}
.charts{grid-template-columns:repeat(auto-fill,minmax(min(100%,400px),1fr))}
.tile,.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px;min-width:0}
.tile b{display:block;font-size:19px;font-weight:600}.tile span{color:var(--soft);font-size:13px}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%}
th{color:var(--soft);font-weight:500;text-align:left}th,td{padding:6px 12px 6px 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}td.n,td.name{white-space:nowrap}td.why{min-width:12em}.bad{color:#c0392b}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:0;font:13px/1.45 ui-monospace,monospace}
.samples{display:grid;grid-template-columns:1fr 1fr;gap:12px}@media(max-width:700px){.samples{grid-template-columns:1fr}}
svg{display:block;width:100%;height:auto}svg.swatch{display:inline-block;width:10px;margin-right:8px}
svg text{font:11px system-ui,sans-serif;fill:var(--soft)}svg .title{font-size:13px;font-weight:600;fill:var(--ink)}
.grid{stroke:var(--line)}polyline{fill:none;stroke-width:1.8;stroke-linejoin:round}.faint{opacity:.3;stroke-width:1}.mark.faint{opacity:.6}
.cursor{stroke:var(--soft);stroke-dasharray:3}.readout{paint-order:stroke;stroke:var(--card);stroke-width:4px;stroke-linejoin:round}
.c0{--c:#0072b2}.c1{--c:#d55e00}.c2{--c:#009e73}.c3{--c:#cc79a7}.c4{--c:#e69f00}.c5{--c:#56b4e9}.c6{--c:#8a6d3b}.c7{--c:#777}
polyline{stroke:var(--c)}.mark,svg .key{fill:var(--c)}.mark.hollow{fill:none;stroke:var(--c);stroke-width:2;pointer-events:all}
.d1{stroke-dasharray:7 3}.d2{stroke-dasharray:2 3}
)";

/// Shows, of the step that is nearest to the pointer, the values of the curves that have one there, those in front first.
constexpr const char* script = R"(
const text=(v,s)=>{if(s==1){let u=['B','KiB','MiB','GiB','TiB'],i=0;while(v>=1024&&i<4){v/=1024;i++}return v.toPrecision(3)+' '+u[i]}
if(s==2){v=Math.round(v);return v<60?v+'s':v<3600?(v/60|0)+'m'+v%60+'s':(v/3600|0)+'h'+(v%3600/60|0)+'m'}
if(s==3){v=10**v;return v<0.0099||v>=1e6?v.toExponential(2).replace(/\.?0*e\+?/,"e"):+v.toPrecision(4)+''}return +v.toPrecision(5)+''};
for(const svg of document.querySelectorAll('svg[data-x]')){
const [x0,x1,xs]=svg.dataset.x.split(',').map(Number),[y0,y1,ys]=svg.dataset.y.split(',').map(Number),L=62,R=546,T=30,B=206;
const cursor=svg.querySelector('.cursor'),readout=svg.querySelector('.readout');
const lines=[...svg.querySelectorAll('polyline')].map(p=>({name:p.dataset.name,
at:p.getAttribute('points').trim().split(' ').map(q=>q.split(',').map(Number))})).reverse();
const nearest=(points,x)=>points.reduce((a,b)=>Math.abs(b[0]-x)<Math.abs(a[0]-x)?b:a);
const show=words=>{const rows=[''];for(const word of words)
if((rows.at(-1)+word).length<=80)rows[rows.length-1]+=word;else rows.push(word);
if(rows.length>6)rows.splice(6,rows.length,'…');
readout.replaceChildren(...rows.map((row,i)=>{const line=document.createElementNS(svg.namespaceURI,'tspan');line.textContent=row;
line.setAttribute('x',L+4);line.setAttribute('y',T+11+13*i);return line}))};
svg.onmouseleave=()=>{cursor.removeAttribute('d');readout.replaceChildren()};
svg.onmousemove=e=>{const box=svg.getBoundingClientRect(),x=(e.clientX-box.left)/box.width*560;
if(x<L-9||x>R+9||!lines.length)return svg.onmouseleave();
const at=nearest(lines.map(l=>nearest(l.at,x)),x)[0],here=lines.map(l=>[l.name,nearest(l.at,at)]).filter(([,p])=>Math.abs(p[0]-at)<.7);
cursor.setAttribute('d','M'+at+' '+T+'V'+B);
const where=x0+(at-L)/(R-L)*(x1-x0);
show([(xs?text(where,xs):Math.round(where))+': ',...here.map(([n,p],i)=>n+' '+text(y0+(B-p[1])/(B-T)*(y1-y0),ys)+(i<here.length-1?', ':''))])}}
)";

std::string words(const std::string& status) { return status == "stopped_early" ? "stopped early" : status; }

std::string loss_text(double loss) { return std::isnan(loss) ? "" : fmt::format("{:.4f}", loss); }
std::string share_text(double share) { return std::isnan(share) ? "" : fmt::format("{:.1f}%", 100 * share); }

std::string from_to(const std::string& before, const std::string& after) {
  return before.empty() || before == after ? after : before + " → " + after;
}

/// As jobs files have it.
std::string dtype_name(const std::string& recorded) {
  for (const auto& [record, name] : {std::pair{"BFloat16", "bfloat16"}, {"Float", "float32"}, {"Double", "float64"}}) {
    if (recorded == record) return name;
  }
  return recorded;
}

/// `17.4 GiB`, never in two lines.
std::string unbroken_bytes_text(int64_t bytes) {
  std::string text = bytes_text(bytes);
  if (const size_t space = text.find(' '); space != std::string::npos) text.replace(space, 1, "\u00A0");
  return text;
}

std::string tile(const std::string& value, const std::string& name) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", xml_text(value), xml_text(name));
}

std::string tiles(const RunLog& log, const std::string& phase) {
  int64_t steps = 0, peak = 0;
  for (const LoggedJob& job : log.jobs) steps += job.step;
  for (const LoggedUsage& usage : log.usage) peak = std::max(peak, usage.device_bytes.value_or(usage.resident_bytes));
  std::string html = "<div class=\"tiles\">\n" + tile(phase_text(phase, log.emulated), "the run");
  html += tile(std::to_string(log.jobs.size()), "jobs") + tile(std::to_string(steps), "optimizer steps");
  html += tile(duration_text(log.summary && log.seconds <= log.summary->seconds ? log.summary->seconds : log.seconds), "time");
  if (log.summary) {
    peak = log.summary->peak_device_bytes > 0 ? log.summary->peak_device_bytes : log.summary->peak_resident_bytes;
    if (!std::isnan(log.summary->tokens_per_second))
      html += tile(fmt::format("{:.0f}", log.summary->tokens_per_second), "tokens/s in training");
  }
  if (peak > 0)
    html += tile(bytes_text(peak), log.memory_limit_bytes > 0 ? "peak memory of " + unbroken_bytes_text(log.memory_limit_bytes) : "peak memory");
  return html + "</div>\n";
}

std::string job_table(const RunLog& log) {
  std::string html =
      "<h2>Jobs</h2>\n<div class=\"card wide\"><table>\n<tr><th>job</th><th>state</th><th class=\"n\">steps</th>"
      "<th class=\"n\">held-out loss</th><th class=\"n\">rows right</th><th class=\"n\">last loss</th><th class=\"n\">adapter of "
      "step</th></tr>\n";
  for (size_t i = 0; i < log.jobs.size(); ++i) {
    const LoggedJob& job = log.jobs[i];
    const bool bad = job.status == "failed" || job.status == "refused";
    html += fmt::format(
        "<tr><td class=\"name\">{}{}</td><td class=\"why{}\">{}{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td "
        "class=\"n\">{}</td>"
        "<td class=\"n\">{}</td></tr>\n",
        log.jobs.size() > 1 ? swatch(i) : "", xml_text(job.spec.name), bad ? " bad" : "", xml_text(words(job.status)),
        job.reason.empty() ? "" : ": " + xml_text(job.reason),
        job.steps > 0 ? fmt::format("{} of {}", job.step, job.steps) : std::to_string(job.step),
        from_to(loss_text(job.start_eval_loss), loss_text(job.eval_loss)),
        from_to(share_text(job.start_eval_accuracy), share_text(job.eval_accuracy)), job.made.empty() ? "" : loss_text(job.made.back().loss),
        job.adapter_step ? std::to_string(*job.adapter_step) : "");
  }
  return html + "</table></div>\n";
}

/// Of several ranks, when the run has ended.
std::string rank_table(const RunLog& log) {
  if (!log.summary || log.summary->ranks.empty()) return "";
  std::string html =
      "<h2>Ranks</h2>\n<div class=\"card wide\"><table>\n<tr><th>rank</th><th>layers</th><th>replica</th><th>part of each layer</th>"
      "<th class=\"n\">busy</th><th class=\"n\">exposed communication</th><th class=\"n\">bubble</th></tr>\n";
  for (size_t i = 0; i < log.summary->ranks.size(); ++i) {
    const RankView& rank = log.summary->ranks[i];
    html += fmt::format(
        "<tr><td>{}{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n", i,
        rank.host.empty() ? "" : " " + xml_text(rank.host), layers_text(rank), rank.replica + 1,
        rank.parts > 1 ? fmt::format("{} of {}", rank.part + 1, rank.parts) : "whole", share_text(rank.busy), share_text(rank.exposed),
        share_text(rank.bubble));
  }
  return html + "</table></div>\n";
}

std::vector<ChartPoint> losses(const LoggedJob& job) {
  std::vector<ChartPoint> points;
  for (const LoggedStep& step : job.made) points.push_back({static_cast<double>(step.step), step.loss});
  return points;
}

std::string loss_charts(const RunLog& log) {
  std::string html = "<h2>Losses</h2>\n<div class=\"charts\">\n";
  LineChart together{.title = "all jobs", .x_name = "step", .with_legend = true};
  for (size_t i = 0; i < log.jobs.size(); ++i) {
    const LoggedJob& job = log.jobs[i];
    Curve each{.name = "loss", .colour = i, .points = losses(job)};
    Curve mean{.name = "smoothed", .colour = i, .points = smoothed(each.points)};
    Curve held_out{.name = "held out", .colour = i, .with_marks = true};
    for (const LoggedEvaluation& evaluation : job.evaluations)
      held_out.points.push_back({static_cast<double>(evaluation.step), evaluation.loss});
    together.curves.push_back({.name = job.spec.name, .colour = i, .points = mean.points});
    LineChart chart{.title = job.spec.name, .x_name = "step", .with_legend = true, .curves = {held_out}};
    each.faint = smoothing_reach(each.points.size()) > 0;
    if (each.faint) chart.curves.push_back(mean);
    chart.curves.push_back(each);
    html += "<div class=\"card\">" + to_svg(chart) + "</div>\n";
  }
  if (log.jobs.size() > 1) html += "<div class=\"card\">" + to_svg(together) + "</div>\n";
  return html + "</div>\n";
}

std::string usage_charts(const RunLog& log) {
  if (log.usage.empty()) return "";
  LineChart rate{.title = "throughput, tokens/s", .x_name = "time", .x_scale = Scale::seconds, .from_zero = true};
  LineChart memory{
      .title = "memory", .x_name = "time", .x_scale = Scale::seconds, .y_scale = Scale::bytes, .from_zero = true, .with_legend = true};
  Curve tokens{.name = "tokens/s", .colour = 2}, process{.name = "process", .colour = 0}, tensors{.name = "tensors", .colour = 1};
  Curve device{.name = "device", .colour = 3};
  for (const LoggedUsage& usage : log.usage) {
    tokens.points.push_back({usage.seconds, usage.tokens_per_second});
    process.points.push_back({usage.seconds, static_cast<double>(usage.resident_bytes)});
    tensors.points.push_back({usage.seconds, static_cast<double>(usage.tensor_bytes)});
    if (usage.device_bytes) device.points.push_back({usage.seconds, static_cast<double>(*usage.device_bytes)});
  }
  rate.curves = {tokens};
  memory.curves = {process, tensors, device};
  return "<h2>Throughput and memory</h2>\n<div class=\"charts\"><div class=\"card\">" + to_svg(rate) + "</div><div class=\"card\">" +
         to_svg(memory) + "</div></div>\n";
}

std::string sample_card(const LoggedSample& sample) {
  const std::string when = sample.step == 0 ? "before training" : fmt::format("after step {}", sample.step);
  const std::string answer =
      sample.answer ? "<pre>" + xml_text(*sample.answer, true) + "</pre>" : "<p>no memory was left for an answer</p>";
  return fmt::format("<div class=\"card\"><p>answers {}</p>{}</div>\n", when, answer);
}

std::string samples(const RunLog& log) {
  std::string html;
  for (const LoggedJob& job : log.jobs) {
    if (job.samples.empty()) continue;
    html += fmt::format("<div class=\"card\"><p>{} is asked</p><pre>{}</pre></div>\n<div class=\"samples\">\n", xml_text(job.spec.name),
                        xml_text(job.samples.front().prompt, true));
    for (const LoggedSample& sample : job.samples) html += sample_card(sample);
    html += "</div>\n";
  }
  if (html.empty())
    return "<p style=\"margin-top:12px\">Answers before and after training stand here where <code>cotune train --sample-tokens N</code> asks for "
           "them.</p>\n";
  return "<h2>Answers before and after</h2>\n<div style=\"display:grid;gap:12px\">\n" + html + "</div>\n";
}

std::string notices(const RunLog& log) {
  if (log.notices.empty()) return "";
  std::string html = "<h2>Notices</h2>\n<div class=\"card\"><ul>\n";
  for (const std::string& notice : log.notices) html += "<li>" + xml_text(notice) + "</li>\n";
  return html + "</ul></div>\n";
}

}  // namespace

std::string run_page(const RunLog& log, const std::string& phase) {
  const std::string name = xml_text(log.folder.filename().string());
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src "
      "'unsafe-inline'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n"
      "<title>{} – cotune</title>\n<style>{}</style></head><body>\n<h1>{}</h1>\n",
      name, style, name);
  html += fmt::format(
      "<p>{}</p>\n<p>{} in {}, {}</p>\n", xml_text(log.folder.string()), xml_text(log.model), xml_text(dtype_name(log.compute_dtype)),
      xml_text(log.summary && !log.summary->device.empty() && log.summary->device != "cpu" ? log.summary->device : log.instruction_set));
  if (log.emulated) html += "<p class=\"bad\">Emulated: nothing was computed; times are predicted, and there are no losses.</p>\n";
  for (const std::string& each : log.damage) html += fmt::format("<p class=\"bad\">{}</p>\n", xml_text(visible_text(each)));
  html +=
      tiles(log, phase) + sweep_sections(log) + job_table(log) + rank_table(log) + loss_charts(log) + usage_charts(log) + samples(log) + notices(log);
  html += "<h2>Configuration</h2>\n<details class=\"card\"><summary>the effective jobs file</summary><pre>" +
          xml_text(log.configuration, true) + "</pre></details>\n";
  return html + "<script>" + script + "</script>\n</body></html>\n";
}

}  // namespace cotune
