# SPDX-License-Identifier: Apache-2.0
"""Credentials from services: of a container, of an instance, and of STS for a web identity."""
import errno
import http.server
import json
import threading
import urllib.parse

import pytest

from harness.s3_probe import Probe, Refused

JSON = {"AccessKeyId": "key", "SecretAccessKey": "secret", "Token": "token", "Expiration": "2099-01-01T00:00:00Z"}
XML = ("<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>key</AccessKeyId>"
       "<SecretAccessKey>secret</SecretAccessKey><SessionToken>token</SessionToken><Expiration>2099-01-01T00:00:00Z"
       "</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>")
FOUND = {"access_key": "key", "secret_key": "secret", "session_token": "token", "expires": 4070908800}


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        self.server.asked.append((self.command, self.path, dict(self.headers), body))
        text = self.server.answers.get((self.command, self.path))
        self.send_response(404 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "").encode())

    do_GET = do_PUT = do_POST = answer


@pytest.fixture
def service():
    """A service that gives credentials: `answers` by method and path, and what was `asked`."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.answers, made.asked = {}, []
        made.url = f"http://127.0.0.1:{made.server_port}"
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def find(**variables):
    files = {"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
    return Probe({**files, **variables})("credentials")


def test_a_container_gives_credentials(service, local):
    service.answers["GET", "/v2/creds"] = json.dumps(JSON)
    token = local / "token"
    token.write_text("let me in\n")
    assert find(AWS_CONTAINER_CREDENTIALS_FULL_URI=service.url + "/v2/creds",
                AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(token)) == FOUND
    assert {name.lower(): value for name, value in service.asked[0][2].items()}["authorization"] == "let me in"
    with pytest.raises(Refused) as caught:
        find(AWS_CONTAINER_CREDENTIALS_FULL_URI=service.url + "/other")
    assert caught.value.code == errno.EACCES and "HTTP 404" in caught.value.text


def test_an_instance_gives_credentials(service):
    roles = "/latest/meta-data/iam/security-credentials/"
    service.answers["PUT", "/latest/api/token"] = "session"
    service.answers["GET", roles] = "my-role"
    service.answers["GET", roles + "my-role"] = json.dumps({"Code": "Success", **JSON})
    assert find(AWS_EC2_METADATA_SERVICE_ENDPOINT=service.url + "/") == FOUND
    assert all({name.lower(): value for name, value in headers.items()}["x-aws-ec2-metadata-token"] == "session"
               for method, _, headers, _ in service.asked if method == "GET")


def test_an_instance_without_a_role_gives_none(service):
    with pytest.raises(Refused) as caught:
        find(AWS_EC2_METADATA_SERVICE_ENDPOINT=service.url)
    assert "the metadata service " + service.url in caught.value.text
    service.asked.clear()
    with pytest.raises(Refused):
        find(AWS_EC2_METADATA_SERVICE_ENDPOINT=service.url, AWS_EC2_METADATA_DISABLED="true")
    assert service.asked == []


def test_a_web_identity_assumes_its_role(service, local):
    service.answers["POST", "/"] = XML
    token = local / "token"
    token.write_text("a.b+c\n")
    variables = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(token), "AWS_ROLE_ARN": "arn:aws:iam::1:role/r",
                 "AWS_ENDPOINT_URL_STS": service.url}
    assert find(**variables) == FOUND
    form = dict(urllib.parse.parse_qsl(service.asked[0][3]))
    assert form["WebIdentityToken"] == "a.b+c" and form["RoleArn"] == "arn:aws:iam::1:role/r"
    del service.answers["POST", "/"]
    with pytest.raises(Refused) as caught:
        find(**variables)
    assert "refused the token of arn:aws:iam::1:role/r: HTTP 404" in caught.value.text
