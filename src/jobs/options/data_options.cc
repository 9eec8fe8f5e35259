#include "jobs/options/sections.h"

#include "jobs/options/option_entry.h"

namespace cotune::options {

void add_data(std::vector<Option>& table) {
  table.push_back(field(Section::data, "train", COTUNE_FIELD(job->data.train), {.type = OptionType::files, .low = 0, .high = 1e9, .low_open = true},
                        "File of training examples: JSONL, also compressed, or Parquet. Several as a list, `[a.jsonl, b.jsonl]`, or with their "
                        "shares of an epoch: `[{path: a.jsonl, weight: 3}, {path: b.jsonl, weight: 1}]`.",
                        {.required = true, .group = "examples", .alternative = "train"}));
  table.push_back(field(Section::data, "lengths", COTUNE_FIELD(job->data.lengths),
                        {.type = OptionType::lengths, .low = 1, .high = double(most_tokens)},
                        "Example lengths in tokens in place of data, for `cotune plan`, `cotune simulate` and an emulated device.",
                        {.group = "examples", .alternative = "lengths"}));
  table.push_back(field(Section::data, "eval", COTUNE_FIELD(job->data.eval), of_type(OptionType::path),
                        "File of held-out examples.", {.group = "evaluation", .alternative = "eval"}));
  table.push_back(field(Section::data, "eval_fraction", COTUNE_FIELD(job->data.eval_fraction), between(0, 0.5),
                        "Share of `train` to hold out, chosen by a hash of each example's text, whatever the seed.",
                        {.aliases = {"val_set_size"}, .group = "evaluation", .alternative = "eval_fraction"}));
  table.push_back(field(Section::data, "format", COTUNE_FIELD(job->data.format),
                        choice_of<DataFormat>({{"chat", "messages"}}),
                        "What every record holds (docs/data-formats.md); `auto`: what each file's first one does."));
  table.push_back(field(Section::data, "chat_template", COTUNE_FIELD(job->data.chat_template),
                        of_type(OptionType::path), "File with a Jinja template in place of the model's own."));
  table.push_back(field(Section::data, "max_length", COTUNE_FIELD(job->data.max_length), whole(0, most_tokens),
                        "Tokens per example; 0: the model's context length.",
                        {.aliases = {"sequence_len", "max_seq_length", "cutoff_len"}}));
  table.push_back(field(Section::data, "truncation", COTUNE_FIELD(job->data.truncation), choice_of<Truncation>(),
                        "What happens to longer examples: cut the right or left end, drop them (axolotl's default), or stop."));
  table.push_back(field(Section::data, "train_on_prompt", COTUNE_FIELD(job->data.train_on_prompt),
                        of_type(OptionType::boolean), "Learn the prompt's tokens too.",
                        {.aliases = {"train_on_inputs"}}));
  table.push_back(field(Section::data, "special_tokens", COTUNE_FIELD(job->data.special_tokens), choice_of<SpecialTokens>(),
                        "What texts of special tokens are in `text`, `prompt`, `completion` and Alpaca's fields: plain characters, or parsed as "
                        "tokens, for chats that a template has rendered before."));
  table.push_back(field(Section::data, "max_examples", COTUNE_FIELD(job->data.max_examples), whole(0, most_steps),
                        "Take only the first so many examples of each file of `train`; 0: all."));
}

}  // namespace cotune::options
