#include "data/template/jinja.h"

#include "data/template/jinja_parser.h"
#include "data/template/jinja_renderer.h"

namespace cotune::jinja {

struct Template::Body {
  Block block;
};

Template::Template(std::string_view source, std::string name) : name_(std::move(name)) {
  body_ = std::make_unique<const Body>(Body{parse_template(source, name_)});
}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

Text Template::render(const Variables& variables, std::optional<std::tm> now, const Limits& limits,
                      uint64_t* shared_steps) const {
  Runtime runtime(name_, limits, now, shared_steps);
  return Renderer(runtime).render(body_->block, variables);
}

}  // namespace cotune::jinja
