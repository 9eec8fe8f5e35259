/// Models and adapters by their Hugging Face name, from the cache that `huggingface_hub` keeps on this machine. Nothing is
/// downloaded: what is absent is a message with the command that fetches it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace cotune {

/// `organisation/name`, `name`, or `organisation/name/file.gguf`, whose file may be in folders; each also with `@revision`: a branch, a
/// tag or a commit.
struct HubName {
  std::string repository;
  std::string revision = "main";
  std::string file = {};  ///< "": the whole repository
  bool operator==(const HubName&) const = default;
};

/// What messages accept as a model.
inline constexpr std::string_view accepted_models = "a Hugging Face folder, a GGUF file, or the name of a model in the Hugging Face cache";

/// The name that a text may be, by the hub's own rules; nothing for any other text, as are most paths.
std::optional<HubName> parse_hub_name(std::string_view text);

/// HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub: the first that
/// the environment gives, with `~` and `$NAME` in it replaced.
std::filesystem::path hub_cache_folder();

/// The folder of the revision's files: models--ORGANISATION--NAME/snapshots/COMMIT, where refs/REVISION holds the commit or the
/// revision is one; or the named file in it. Nothing where it is not there.
std::optional<std::filesystem::path> find_in_hub_cache(const HubName& name, const std::filesystem::path& cache = hub_cache_folder());

/// `hf download organisation/name file.gguf --revision …`. Of a repository by whose name it holds GGUF files, often many, and no file's
/// name: with FILE.gguf for one.
std::string hub_download_command(const HubName& name);

/// `it is not in the Hugging Face cache either (FOLDER does not exist); `hf download …` fetches it`.
std::string hub_cache_complaint(const HubName& name, const std::filesystem::path& cache = hub_cache_folder());

/// `path` where it exists; else the snapshot that it names; else `path` again.
std::filesystem::path path_or_snapshot(const std::filesystem::path& path);

/// What find_in_hub_cache() has found, as a model: of a repository without config.json and safetensors files its one GGUF file. Throws
/// UserError that lists the files where there are several.
std::filesystem::path model_in_snapshot(const std::filesystem::path& found, const HubName& name);

/// path_or_snapshot() of a model.
std::filesystem::path model_path(const std::filesystem::path& path);

/// What is added to a message about a path that does not exist: `; ` and the complaint where it may be a name, else nothing.
std::string hub_cache_hint(const std::filesystem::path& path);

/// What is said of a path in the cache where files are missing: `is of the Hugging Face cache, which may hold a part only: `hf download …`
/// fetches the rest`. "" for any other path.
std::string hub_part_complaint(const std::filesystem::path& path);

/// What is added to a message about such a path: `; it ` and the complaint, or nothing.
std::string hub_part_hint(const std::filesystem::path& path);

/// The name, with the commit as revision, of a repository's folder in a cache, or of a GGUF file in it; nothing for any other path.
std::optional<HubName> hub_name_of(const std::filesystem::path& path);

}  // namespace cotune
