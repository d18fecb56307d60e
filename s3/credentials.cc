// SPDX-License-Identifier: Apache-2.0
#include "s3/credentials.h"

#include <fmt/ranges.h>

#include "common/json.h"
#include "common/make_error.h"
#include "common/printable.h"
#include "common/result.h"
#include "common/run_program.h"
#include "s3/config_file.h"
#include "s3/location.h"
#include "s3/responses.h"
#include "s3/text.h"
#include "s3/transfer.h"

namespace weightfs::s3 {
namespace {

constexpr std::chrono::minutes kRenewBefore{5};
constexpr std::chrono::seconds kMargin{10};  // a request signed just before the end must still arrive in time
constexpr std::chrono::seconds kRenewalInterval{30};
constexpr std::chrono::seconds kProcessTimeout{60};
constexpr size_t kMaxToken = size_t{64} << 10;
constexpr std::string_view kContainerHost = "http://169.254.170.2";

Error CredentialError(const std::string& text) { return {ErrorCode::kAccess, "no S3 credentials: " + text}; }

// Returns the token without the line break that editors add.
Result<std::string> ReadToken(const std::string& path) {
  const auto text = ReadSmallFile(path, "the token", kMaxToken);
  if (!text) return CredentialError(text.error().what);
  const auto token = Trim(*text);
  if (token.empty()) return CredentialError(path + ": the token is empty");
  return std::string(token);
}

// One short HTTP request, for the services that give credentials.
struct FetchRequest {
  std::string method = "GET";
  std::string url;
  Fields headers = {};
  std::string body = {};
  unsigned connect_timeout_s = 1;
  std::chrono::milliseconds timeout{5000};
  bool use_proxy = false;  // metadata services are on this machine or its link
  std::string ca_bundle = {};
  const Interrupted& interrupted;
};

// Fails with kNotFound if no connection can be made, with kIo if there is no complete response, with kTooLarge for one
// above 1 MiB, and with kInvalid for a header with a line break. The error has the reason and the server, but neither
// the path nor the query, which may be secret. Blocks. Thread-safe.
Result<Attempt> Fetch(const FetchRequest& request) {
  const auto server = PrintableOrigin(request.url);
  for (const auto& [name, value] : request.headers) {
    if (!HasLineBreak(value)) continue;
    return MakeError(ErrorCode::kInvalid, "{}: the header {} has a line break", server, name);
  }
  const Settings settings{
      .ca_bundle = request.ca_bundle, .use_proxy = request.use_proxy, .connect_timeout_s = request.connect_timeout_s};
  RateLimit unlimited(0);
  Transfer transfer(settings, unlimited);
  if (!transfer) return ErrorCode::kNoMemory;
  const auto end = std::chrono::steady_clock::now() + request.timeout;
  bool is_late = false;
  const auto stop = [&] {
    is_late = std::chrono::steady_clock::now() >= end;
    return is_late || (request.interrupted && request.interrupted());
  };
  const Request sent{
      .method = request.method, .body = std::as_bytes(std::span(request.body)), .body_limit = size_t{1} << 20};
  auto answer = transfer.Run(sent, request.url, request.headers, stop);
  if (!answer && !is_late) return answer.error();
  if (answer && answer->too_large) return Error{ErrorCode::kTooLarge, server + ": the answer is too large"};
  const auto result = is_late ? CURLE_OPERATION_TIMEDOUT : answer->result;
  if (result == CURLE_OK || (answer && answer->status >= 300)) return answer;
  return MakeError(transfer.is_connected() ? ErrorCode::kIo : ErrorCode::kNotFound, "{}: {}", server,
                   curl_easy_strerror(result));
}

// Sends the request, and once more if it fails: a single lost packet exceeds the short timeouts.
Result<Attempt> FetchTwice(const FetchRequest& request) {
  auto response = Fetch(request);
  const auto code = response ? ErrorCode::kIo : response.error().code;
  const bool failed = response ? response->status >= 500 : code == ErrorCode::kIo || code == ErrorCode::kNotFound;
  return failed ? Fetch(request) : response;
}

// Returns the error of a Fetch as one of Load.
Error FetchFailure(const Error& error) {
  if (error.code == ErrorCode::kCancelled) return {ErrorCode::kCancelled};
  return CredentialError(error.what);
}

std::string TextOf(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// Parses what credential_process, containers and instances return; only the name of the token differs.
Result<Credentials> ParseCredentials(const std::string& text, const char* token_name, const std::string& source) {
  const auto parsed = ParseJson(text);
  if (!parsed || !parsed->is_object()) return CredentialError(source + " returned no JSON object");
  const nlohmann::json& answer = *parsed;
  Credentials credentials{TextOf(answer, "AccessKeyId"), TextOf(answer, "SecretAccessKey"), TextOf(answer, token_name)};
  if (credentials.access_key.empty() || credentials.secret_key.empty()) {
    return CredentialError(source + " returned no AccessKeyId and SecretAccessKey");
  }
  if (const auto expires = TextOf(answer, "Expiration"); !expires.empty()) {
    credentials.expires = ParseIsoTime(expires);
    if (!credentials.expires) return CredentialError(source + " returned an Expiration that is no time");
  }
  return credentials;
}

// Tokens may be sent without TLS only to this machine and to the addresses that containers have for this purpose. The
// host is what follows an '@'.
bool MayReceiveTokens(std::string_view url) {
  if (url.starts_with("https://")) return true;
  if (url.find('@') != std::string_view::npos) return false;
  constexpr std::string_view kHosts[] = {"localhost",     "127.0.0.1",      "[::1]",
                                         "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"};
  return std::ranges::any_of(kHosts, [&](std::string_view host) {
    const auto start = fmt::format("http://{}", host);
    return url.starts_with(start) &&
           (url.size() == start.size() || url[start.size()] == ':' || url[start.size()] == '/');
  });
}

Error UntrustedUrl(std::string_view variable, std::string_view url) {
  return CredentialError(
      fmt::format("{} is {}, which is neither https nor on this machine; correct it", variable, PrintableOrigin(url)));
}

// One search for credentials.
class CredentialSources {
 public:
  CredentialSources(const Settings& settings, const Environment& environment, const Interrupted& interrupted)
      : settings_(settings), environment_(environment), interrupted_(interrupted) {}

  Result<Credentials> Load() {
    using Place = Found (CredentialSources::*)();
    for (const Place place :
         {&CredentialSources::FromEnvironment, &CredentialSources::FromFiles, &CredentialSources::FromWebIdentity,
          &CredentialSources::FromContainer, &CredentialSources::FromInstance}) {
      auto found = (this->*place)();
      if (!found) return std::move(found).error();
      if (*found) return std::move(**found);
    }
    return CredentialError(
        fmt::format("looked at {}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile",
                    fmt::join(looked_at_, ", ")));
  }

 private:
  // Each returns no credentials if its place has none.
  using Found = Result<std::optional<Credentials>>;

  Found FromEnvironment() {
    if (settings_.profile_given) return std::nullopt;
    const auto access_key = environment_("AWS_ACCESS_KEY_ID"), secret_key = environment_("AWS_SECRET_ACCESS_KEY");
    looked_at_.emplace_back("AWS_ACCESS_KEY_ID");
    if (!access_key && !secret_key) return std::nullopt;
    if (!access_key || !secret_key) {
      return CredentialError(fmt::format("only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set; set {} too",
                                         access_key ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID"));
    }
    return Credentials{*access_key, *secret_key, environment_("AWS_SESSION_TOKEN").value_or("")};
  }

  Found FromFiles() {
    ASSIGN_OR_RETURN(const auto credentials, ConfigFile::Read(settings_.credentials_file));
    ASSIGN_OR_RETURN(const auto config, ConfigFile::Read(settings_.config_file));
    for (const auto& file : {settings_.credentials_file, settings_.config_file}) {
      looked_at_.push_back(fmt::format("profile '{}' in {}", Printable(settings_.profile), file));
    }
    ASSIGN_OR_RETURN(auto found, FromSection(credentials.Find(settings_.profile), settings_.credentials_file));
    if (found) return found;
    return FromSection(config.FindProfile(settings_.profile), settings_.config_file);
  }

  Found FromSection(const ConfigSection* section, const std::string& file) {
    const auto access_key = ValueOf(section, "aws_access_key_id");
    const auto secret_key = ValueOf(section, "aws_secret_access_key");
    if (access_key && secret_key) {
      return Credentials{*access_key, *secret_key, ValueOf(section, "aws_session_token").value_or("")};
    }
    const auto profile = Printable(settings_.profile);
    if (access_key || secret_key) {
      return CredentialError(
          fmt::format("profile '{}' in {} has only one of aws_access_key_id and "
                      "aws_secret_access_key; add the other",
                      profile, file));
    }
    if (const auto command = ValueOf(section, "credential_process")) return FromProcess(*command);
    for (const char* name : {"source_profile", "credential_source", "sso_session", "sso_start_url"}) {
      if (!ValueOf(section, name)) continue;
      return CredentialError(
          fmt::format("profile '{0}' in {1} has {2}, which weightfs does not support; add a profile with the line "
                      "'credential_process "
                      "= aws configure export-credentials --profile {0} --format process' and name it",
                      profile, file, name));
    }
    return std::nullopt;
  }

  Result<Credentials> FromProcess(const std::string& command) {
    const auto source = fmt::format("credential_process of profile '{}'", Printable(settings_.profile));
    auto output = ProcessOutput(command, kProcessTimeout, interrupted_);
    if (!output && output.error().code == ErrorCode::kCancelled) return ErrorCode::kCancelled;
    if (!output) return CredentialError(fmt::format("{}: {}; run it by hand", source, output.error().what));
    return ParseCredentials(*output, "SessionToken", source);
  }

  Found FromWebIdentity() {
    ASSIGN_OR_RETURN(const auto config, ConfigFile::Read(settings_.config_file));
    const auto* profile = config.FindProfile(settings_.profile);
    auto file = environment_("AWS_WEB_IDENTITY_TOKEN_FILE"), role = environment_("AWS_ROLE_ARN");
    if (!file) file = ValueOf(profile, "web_identity_token_file");
    if (!role) role = ValueOf(profile, "role_arn");
    looked_at_.emplace_back("AWS_WEB_IDENTITY_TOKEN_FILE");
    if (!file) return std::nullopt;
    if (!role) return CredentialError("AWS_WEB_IDENTITY_TOKEN_FILE is set without AWS_ROLE_ARN; set it too");
    ASSIGN_OR_RETURN(const auto token, ReadToken(*file));
    FetchRequest request{.method = "POST", .interrupted = interrupted_};
    request.url = environment_("AWS_ENDPOINT_URL_STS")
                      .value_or(fmt::format("https://sts.{}.amazonaws.com{}", settings_.region,
                                            settings_.region.starts_with("cn-") ? ".cn" : ""));
    if (!MayReceiveTokens(request.url)) return UntrustedUrl("AWS_ENDPOINT_URL_STS", request.url);
    request.headers = {{"content-type", "application/x-www-form-urlencoded"}};
    request.body = CanonicalQuery({{"Action", "AssumeRoleWithWebIdentity"},
                                   {"Version", "2011-06-15"},
                                   {"RoleArn", *role},
                                   {"RoleSessionName", environment_("AWS_ROLE_SESSION_NAME").value_or("weightfs")},
                                   {"WebIdentityToken", token}});
    request.connect_timeout_s = 5;
    request.timeout = std::chrono::seconds(20);
    request.use_proxy = true;
    request.ca_bundle = settings_.ca_bundle;
    const auto response = FetchTwice(request);
    if (!response) return FetchFailure(response.error());
    const auto server = PrintableOrigin(request.url);
    if (response->status != 200) {
      const auto error = ParseErrorDocument(response->body);
      return CredentialError(fmt::format("{} refused the token of {}: HTTP {} {}: {}", server, Printable(*role),
                                         response->status, Printable(error.code), Printable(error.message)));
    }
    auto credentials = ParseAssumedRole(response->body);
    if (!credentials) return CredentialError(server + " returned no credentials");
    return *credentials;
  }

  Found FromContainer() {
    auto url = environment_("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    if (const auto relative = environment_("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")) {
      url = std::string(kContainerHost) + *relative;
    }
    looked_at_.emplace_back("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    if (!url) return std::nullopt;
    if (!MayReceiveTokens(*url)) return UntrustedUrl("AWS_CONTAINER_CREDENTIALS_FULL_URI", *url);
    FetchRequest request{.url = *url, .interrupted = interrupted_};
    auto authorization = environment_("AWS_CONTAINER_AUTHORIZATION_TOKEN").value_or("");
    if (const auto file = environment_("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")) {
      ASSIGN_OR_RETURN(authorization, ReadToken(*file));
    }
    if (!authorization.empty()) request.headers.emplace_back("authorization", authorization);
    request.ca_bundle = settings_.ca_bundle;
    const auto response = FetchTwice(request);
    if (!response) return FetchFailure(response.error());
    const auto server = PrintableOrigin(*url);
    if (response->status != 200) return CredentialError(fmt::format("{}: HTTP {}", server, response->status));
    ASSIGN_OR_RETURN(auto credentials, ParseCredentials(response->body, "Token", server));
    return credentials;
  }

  Found FromInstance() {
    if (environment_("AWS_EC2_METADATA_DISABLED").value_or("") == "true") return std::nullopt;
    auto url = environment_("AWS_EC2_METADATA_SERVICE_ENDPOINT").value_or("http://169.254.169.254");
    while (url.ends_with('/')) url.pop_back();
    const auto server = "the metadata service " + PrintableOrigin(url);
    looked_at_.push_back(server);
    const auto refused = [&](int status) {
      return CredentialError(fmt::format("{}: HTTP {}; set AWS_EC2_METADATA_DISABLED=true to skip it", server, status));
    };
    FetchRequest request{.method = "PUT", .url = url + "/latest/api/token", .interrupted = interrupted_};
    request.headers = {{"x-aws-ec2-metadata-token-ttl-seconds", "21600"}};
    request.timeout = std::chrono::seconds(2);
    const auto token = FetchTwice(request);
    // Most machines are no instances: nothing has this address, or a service that does not know the request.
    if (!token && token.error().code == ErrorCode::kNotFound) return std::nullopt;
    if (!token) return FetchFailure(token.error());
    if (token->status >= 400 && token->status < 500) return std::nullopt;
    if (token->status != 200) return refused(token->status);
    request.method = "GET";
    request.headers = {{"x-aws-ec2-metadata-token", token->body}};
    request.url = url + "/latest/meta-data/iam/security-credentials/";
    const auto roles = FetchTwice(request);
    if (!roles) return FetchFailure(roles.error());
    if (roles->status == 404) return std::nullopt;
    if (roles->status != 200) return refused(roles->status);
    const auto role = roles->body.substr(0, roles->body.find('\n'));
    if (role.empty()) return std::nullopt;
    request.url += PercentEncode(role, Slashes::kEncode);
    request.timeout = std::chrono::seconds(5);
    const auto response = FetchTwice(request);
    if (!response) return FetchFailure(response.error());
    if (response->status != 200) return refused(response->status);
    ASSIGN_OR_RETURN(auto credentials, ParseCredentials(response->body, "Token", server));
    return credentials;
  }

  const Settings& settings_;
  const Environment& environment_;
  const Interrupted& interrupted_;
  std::vector<std::string> looked_at_;  // for the error
};

}  // namespace

CredentialProvider::CredentialProvider(const Settings& settings, Environment environment)
    : settings_(settings), environment_(std::move(environment)) {}

bool CredentialProvider::IsValidLocked(std::chrono::seconds within) const {
  return current_ && (!current_->expires || std::chrono::system_clock::now() + within < *current_->expires);
}

Result<Credentials> CredentialProvider::Get(const Interrupted& interrupted) {
  MutexLock lock(mutex_);
  for (bool waited = false;; waited = true) {
    if (IsValidLocked(kRenewBefore)) return *current_;
    // Credentials that are still valid are renewed now and then: their source may have no others yet.
    const bool renews = !loading_ && std::chrono::steady_clock::now() >= next_renewal_;
    if (IsValidLocked(kMargin) && !renews) return *current_;
    if (waited && !loading_ && failure_ && failure_->code != ErrorCode::kCancelled) return *failure_;
    if (!loading_) break;
    loaded_.wait_for(lock.native(), kInterruptionPoll);
    lock.Unlock();
    if (interrupted && interrupted()) return ErrorCode::kCancelled;
    lock.Lock();
  }
  loading_ = true;
  next_renewal_ = std::chrono::steady_clock::now() + kRenewalInterval;
  lock.Unlock();
  auto loaded = CredentialSources(settings_, environment_, interrupted).Load();
  lock.Lock();
  loading_ = false;
  loaded_.notify_all();
  failure_ = loaded ? std::nullopt : std::optional(loaded.error());
  if (loaded) {
    current_ = *std::move(loaded);
    if (!IsValidLocked(kMargin)) current_->expires.reset();  // the service decides: this machine's clock may be wrong
  }
  return IsValidLocked(kMargin) ? Result<Credentials>(*current_) : *failure_;
}

void CredentialProvider::Invalidate(const Credentials& rejected) {
  MutexLock lock(mutex_);
  const bool is_current = current_ && current_->access_key == rejected.access_key &&
                          current_->secret_key == rejected.secret_key &&
                          current_->session_token == rejected.session_token;
  if (is_current) current_.reset();
}

Result<std::string> ProcessOutput(const std::string& command, std::chrono::seconds timeout,
                                  const Interrupted& interrupted) {
  constexpr size_t kMaxOutput = 1 << 20;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const auto check = [&](size_t printed) -> Result<void> {
    if (interrupted && interrupted()) return ErrorCode::kCancelled;
    if (printed > kMaxOutput) return Error{ErrorCode::kIo, "its output is too long"};
    if (std::chrono::steady_clock::now() < deadline) return {};
    return MakeError(ErrorCode::kIo, "it was not done after {} s", timeout.count());
  };
  std::string output;
  const auto status = RunProgram({"/bin/sh", "-c", command}, {}, &output, check);
  if (!status && status.error().what.empty() && status.error().code != ErrorCode::kCancelled) {
    return SystemError("/bin/sh", "cannot be run", status.error().error_number());
  }
  if (!status) return status.error();
  if (*status == 0) return output;
  if (*status > 0) return MakeError(ErrorCode::kIo, "it exited with {}", *status);
  return MakeError(ErrorCode::kIo, "signal {} ended it", -*status);
}

}  // namespace weightfs::s3
