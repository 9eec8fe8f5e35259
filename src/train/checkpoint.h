/// A job's checkpoints (design: one folder per step, committed by one rename):
///   DIR/step-N/{adapter_config.json, adapter_model.safetensors, optimizer.safetensors, state.json, checksums.json}
///   DIR/latest    text file with the name of the newest complete folder
///   DIR/previous  the same for the one before it: what there is to go back to when the newest turns out bad
///   DIR/best      the same for the best evaluation, when the job keeps it
/// A folder that one of them names is never written to: saving such a step again makes `step-N.again` beside it and
/// moves the name over. So a crash at any instant leaves `latest` (and the others) naming a complete folder. `best` moves
/// after `latest`; where saving ended between the two, remove_leftovers moves it. Nothing of ranks, stages or neighbours is in it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "adapter/adapter.h"
#include "train/job_state.h"

namespace cotune {

/// Writes a folder of state.step, then moves `previous` to what `latest` named, where that is of an earlier step, `latest` to the
/// folder, and with mark_best `best` too, then removes folders that nothing names. Throws SystemError (disk full) naming the file: before
/// `latest` has moved the checkpoints stay as they were, but for the name `previous`, and the unfinished folder is removed; afterwards the new
/// one is the newest, and `best` alone may be left as it was. A folder that was named and that somebody removed is no mistake here.
void save_checkpoint(const std::filesystem::path& job_folder, const Adapter& adapter, const JobState& state,
                     const std::string& base_model, bool mark_best);

/// Whether there is a `latest`, whatever it names but `none`, by which the job begins again: the job goes on from it, or its run is refused.
bool has_checkpoint(const std::filesystem::path& job_folder);

/// The folder that `latest` (or `best`) names, or nothing where there is none, or `latest` says `none`. Throws UserError when it names a folder
/// that is not there.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& job_folder);
std::optional<std::filesystem::path> best_checkpoint(const std::filesystem::path& job_folder);
/// Nothing, too, where somebody removed the folder: for those who tell of it.
std::optional<std::filesystem::path> latest_checkpoint_if_there(const std::filesystem::path& job_folder);

/// The newest checkpoint turned out bad: `latest` names the one before it again. Returns false, and changes nothing, where
/// there is none.
bool withdraw_latest_checkpoint(const std::filesystem::path& job_folder);

/// Changes nothing. Throws UserError as latest_checkpoint and best_checkpoint do.
void check_checkpoints(const std::filesystem::path& job_folder);

/// Removes what interrupted writes left in a job's folder: temporary files, and checkpoints that nothing names, of steps up to that of `latest`
/// or newest_step(), the last that the job can have saved; it is asked where there is a folder of a later step. What has another name than a
/// checkpoint stays. keeps_best (jobs/job.h): first lets `best` name the newest checkpoint where that is whole and its state says that it is the
/// best. Where `latest` says `none`, `previous` and `best` go too. For the owner of the run folder's lock. Throws UserError as check_checkpoints
/// does, and SystemError where `best` cannot be written.
void remove_leftovers(const std::filesystem::path& job_folder, bool keeps_best, const std::function<int64_t()>& newest_step);

/// The checkpoints in a job's folder that are whole, named or not, the newest first. Reads all of them.
std::vector<std::filesystem::path> whole_checkpoints(const std::filesystem::path& job_folder);

/// Of a job whose newest checkpoint is damaged or not known, as the end of a sentence: the command that goes on from the newest one that is
/// whole, or, where none is, the one by which the job begins again.
std::string way_out_of_damage(const std::filesystem::path& job_folder);

/// Reads the state back; checks every file against its checksum. Throws UserError naming the damaged file.
JobState read_checkpoint_state(const std::filesystem::path& checkpoint);
/// The same with the tensors.
JobState load_checkpoint(const std::filesystem::path& checkpoint, Adapter& adapter);

}  // namespace cotune
