#include "control/protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace cotune {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::string& line, std::string* id = nullptr) {
  try {
    parse_request(line);
  } catch (const BadRequest& error) {
    if (id != nullptr) *id = error.id();
    return error.what();
  }
  return "accepted";
}

std::vector<ControlRequest> requests_of_every_kind() {
  ControlRequest add{.action = ControlAction::add, .id = "17"};
  add.add = {.file = "more \"jobs\".yaml", .text = "cotune: 1\njobs:\n", .folder = "/data", .overrides = {"jobs.a.train.lr=1e-3"},
             .working_directory = "/home"};
  return {{.action = ControlAction::status},
          {.action = ControlAction::list, .id = "\"first\""},
          add,
          {.action = ControlAction::view},
          {.action = ControlAction::cancel, .job = "a"},
          {.action = ControlAction::pause, .job = "a.b-c_d"},
          {.action = ControlAction::resume, .job = "ä"},
          {.action = ControlAction::priority, .job = "a", .priority = -1'000'000},
          {.action = ControlAction::drain}};
}

TEST(ControlRequests, ComeBackFromTheirLines) {
  for (const ControlRequest& request : requests_of_every_kind()) {
    const std::string line = to_line(request);
    EXPECT_EQ(line.find('\n'), std::string::npos);
    EXPECT_EQ(parse_request(line), request) << line;
  }
}

TEST(ControlRequests, AreRefusedWithTheFieldWhatWasFoundAndWhatIsAccepted) {
  EXPECT_THAT(refusal(""), HasSubstr("is not JSON"));
  EXPECT_THAT(refusal("\xff\xfe"), HasSubstr("is not JSON"));
  EXPECT_THAT(refusal("[1]"), HasSubstr("must be a JSON object, got [1]"));
  EXPECT_THAT(refusal(R"({"request":"list"})"), HasSubstr("`cotune` is missing"));
  EXPECT_THAT(refusal(R"({"cotune":2,"request":"list"})"), HasSubstr("`cotune` must be 1, the version of the protocol"));
  EXPECT_THAT(refusal(R"({"cotune":1})"), HasSubstr("`request` is missing"));
  EXPECT_THAT(refusal(R"({"cotune":1,"request":"kill"})"), HasSubstr("must be one of status, list, view, add"));
  EXPECT_THAT(refusal(R"({"cotune":1,"request":"pause"})"), HasSubstr("`job` is missing"));
  EXPECT_THAT(refusal(R"({"cotune":1,"request":"pause","job":7})"), HasSubstr("`job` must be a text, got 7"));
  EXPECT_THAT(refusal(R"({"cotune":1,"request":"list","jobs":[]})"), HasSubstr(R"("jobs"` is no field of this; accepted: cotune, id, request)"));
  EXPECT_THAT(refusal(R"({"cotune":1,"request":"list","id":1.5})"), HasSubstr("`id` must be a text or a whole number"));
  for (const char* priority : {"1.5", "1000001", "-1000001", "18446744073709551615", "\"1\"", "null"}) {
    EXPECT_THAT(refusal(std::string(R"({"cotune":1,"request":"priority","job":"a","priority":)") + priority + "}"),
                HasSubstr("`priority` must be a whole number from -1000000 to 1000000, got")) << priority;
  }
  EXPECT_THAT(refusal(R"({"cotune":1,"request":"add","jobs_file":"j","text":"","folder":"here"})"), HasSubstr("`folder` must be an absolute"));
}

TEST(ControlRequests, GiveTheirIdBackAlsoWhenTheyAreRefused) {
  std::string id;
  refusal(R"({"cotune":1,"request":"kill","id":"seventh"})", &id);
  EXPECT_EQ(id, "\"seventh\"");
  refusal(R"({"cotune":3,"request":"list","id":-4})", &id);
  EXPECT_EQ(id, "-4");
}

TEST(ControlRequests, OfAnyDepthAndAnyNumberOfFieldsAreRefusedQuickly) {
  const std::string deep(1 << 20, '[');
  EXPECT_THAT(refusal(deep), HasSubstr("is nested more than 16 deep"));
  EXPECT_THAT(refusal(R"({"cotune":1,"request":"list","id":)" + deep), HasSubstr("is nested more than 16 deep"));
  std::string wide = "{";
  for (int i = 0; i < 200'000; ++i) wide += "\"" + std::to_string(i) + "\":0,";
  EXPECT_THAT(refusal(wide + "\"cotune\":1,\"request\":\"list\"}"), HasSubstr("is no field of this"));
}

TEST(ControlReplies, ComeBackFromTheirLines) {
  JobReport job{.name = "a", .tenant = "t", .status = "running", .priority = 3, .deadline = "2026-11-30", .added = true,
                .step = 4, .steps = 9, .loss = 1.25, .result_loss = 1.5, .result_accuracy = 0.5, .reason = "", .checkpoint = "/run/jobs/a/step-4", .adapter = ""};
  ControlReply reply;
  reply.jobs = {job};
  const ControlReply again = parse_reply(to_line(reply, "\"x\""));
  ASSERT_TRUE(again.jobs && again.jobs->size() == 1 && !again.error && !again.run);
  EXPECT_EQ(again.jobs->front().checkpoint, job.checkpoint);
  EXPECT_EQ(again.jobs->front().loss, 1.25);
  EXPECT_TRUE(std::isnan(again.jobs->front().eval_loss));
  EXPECT_EQ(again.jobs->front().result_loss, 1.5);
  EXPECT_EQ(again.jobs->front().result_accuracy, 0.5);
  EXPECT_EQ(to_line(again, "\"x\""), to_line(reply, "\"x\""));

  ControlReply of_run;
  of_run.run = RunReport{.pid = 7, .folder = "/run", .phase = "idle", .stay = true, .emulated = true, .rounds = 3, .seconds = 0.5, .jobs = {{"finished", 2}}};
  EXPECT_EQ(to_line(parse_reply(to_line(of_run, "")), ""), to_line(of_run, ""));
  EXPECT_TRUE(parse_reply(to_line(of_run, "")).run->emulated);

  ControlReply of_view;
  of_view.view = RunView{.run = *of_run.run,
                         .jobs = {{.report = job, .learning_rate = 1e-4, .losses = {2, 1.5, 1.25}}},
                         .memory = {.device = "cpu", .used_bytes = 5, .peak_bytes = 6, .limit_bytes = 7},
                         .ranks = {{.host = "", .layers = {{0, 3}, {8, 11}}, .busy = 0.5, .exposed = 0.125, .bubble = 0.375},
                                   {.host = "b", .layers = {{4, 7}}, .replica = 1, .part = 1, .parts = 2, .busy = 1, .exposed = 0, .bubble = 0}},
                         .events = {"a  starts", "“b” waits"},
                         .tokens_per_second = 100};
  const ControlReply view = parse_reply(to_line(of_view, ""));
  ASSERT_TRUE(view.view && view.view->jobs.size() == 1);
  EXPECT_EQ(view.view->jobs[0].losses, (std::vector<double>{2, 1.5, 1.25}));
  EXPECT_TRUE(std::isnan(view.view->seconds_left));
  EXPECT_EQ(view.view->ranks, of_view.view->ranks);
  EXPECT_EQ(view.view->events, of_view.view->events);
  EXPECT_EQ(to_line(view, ""), to_line(of_view, ""));
  std::string of_before = to_line(of_view, "");  // of a run that an older program trains
  const size_t begin = of_before.find("\"ranks\":"), end = of_before.find("\"tokens_per_second\":100");
  of_before.erase(begin, end - begin);
  const std::string emulated = "\"emulated\":true,";
  const ControlReply before = parse_reply(of_before.erase(of_before.find(emulated), emulated.size()));
  EXPECT_TRUE(before.view->ranks.empty() && before.view->events.empty());
  EXPECT_FALSE(before.view->run.emulated);

  ControlReply refused;
  refused.error = ControlError{ControlErrorCode::refused, "two\nlines", {{"jobs.yaml", 3, "jobs[0].name", "is taken"}}};
  const ControlReply error = parse_reply(to_line(refused, ""));
  ASSERT_TRUE(error.error);
  EXPECT_EQ(*error.error, *refused.error);
}

TEST(ControlReplies, ThatAreNoneAreRefused) {
  for (const char* line : {"", "{}", R"({"cotune":1})", R"({"cotune":1,"ok":false})", R"({"cotune":1,"ok":true,"jobs":[{}]})",
                           R"({"cotune":1,"ok":false,"error":{"code":"no","message":""}})", R"({"cotune":9,"ok":true})"}) {
    EXPECT_THROW(parse_reply(line), UserError) << line;
  }
}

}  // namespace
}  // namespace cotune
