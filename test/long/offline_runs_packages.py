# SPDX-License-Identifier: Apache-2.0
"""What W&B's and Comet's own packages read of the files that ds_train keeps for them, as one JSON object:

    offline_runs_packages.py RUN_FOLDER ARCHIVE.zip

"records": the run's records as wandb's protobuf classes see them. "sync": what "wandb sync" sends of it to a server on this
host that only takes notes. "comet": what comet_ml's sender of offline experiments sends, its own schemas checked on the way.

Needs: pip install wandb comet_ml.
"""
import glob
import http.server
import json
import os
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
import offline_runs


def read_records(path):
    from wandb.proto import wandb_internal_pb2 as proto

    out = {"history": [], "summary": {}, "config": {}}
    for n, raw in enumerate(offline_runs.records(open(path, "rb").read()), 1):
        record = proto.Record()
        record.ParseFromString(raw)
        assert record.num == n and record.SerializeToString(deterministic=True) and not unknown(record)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            out["run"] = [record.run.run_id, record.run.entity, record.run.project, record.run.run_group]
            out["config"] = {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "history":
            out["history"].append({item.nested_key[0]: json.loads(item.value_json) for item in record.history.item})
            assert record.history.step.num == out["history"][-1]["_step"]
        elif kind == "summary":
            out["summary"] |= {item.nested_key[0]: json.loads(item.value_json) for item in record.summary.update}
        elif kind == "exit":
            out["exit_code"] = record.exit.exit_code
        else:
            assert kind == "header", kind
    return out


def unknown(record):
    from google.protobuf import unknown_fields

    def any_in(message):
        return len(unknown_fields.UnknownFieldSet(message)) > 0 or any(
            any_in(one) for field, value in message.ListFields() if field.message_type is not None
            for one in ([value] if not hasattr(value, "__len__") else value))
    return any_in(record)


class Notes(http.server.BaseHTTPRequestHandler):
    """Answers as much of W&B's interface as a sync asks for, and keeps what it was sent."""
    rows, summary, upsert, exit_code, complete, seen = {}, {}, {}, None, False, []

    def log_message(self, *_):
        pass

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer({})

    def do_PUT(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer({})

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip
            raw = gzip.decompress(raw)
        body = json.loads(raw or b"{}")
        if self.path.endswith("/file_stream"):
            self.stream(body)
            return self.answer({})
        query, given = body.get("query", ""), body.get("variables") or {}
        Notes.seen.append(query.split("(")[0].split("{")[0].strip()[:60])
        name = given.get("name") or "r"
        bucket = {"id": "x", "name": name, "displayName": name, "description": "", "config": "{}", "sweepName": None, "historyLineCount": 0,
                  "project": {"id": "p", "name": given.get("project") or "p", "entity": {"id": "e", "name": given.get("entity") or "e"}}}
        if "upsertBucket" in query:
            Notes.upsert |= {key: value for key, value in given.items() if value is not None}
            return self.answer({"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}})
        if "createRunFiles" in query:
            files = [{"name": one, "uploadUrl": f"http://{self.headers['Host']}/up"} for one in given.get("files", [])]
            return self.answer({"data": {"createRunFiles": {"runID": "x", "uploadHeaders": [], "files": files}}})
        self.answer({"data": {"viewer": {"id": "v", "entity": "e", "username": "u", "flags": "{}", "teams": {"edges": []}},
                              "serverInfo": {"features": [], "cliVersionInfo": {}, "latestLocalVersionInfo": None},
                              "model": {"bucket": None}, "entity": {"id": "e", "name": "e"}, "project": None}})

    @staticmethod
    def stream(body):
        for name, part in (body.get("files") or {}).items():
            if name == "wandb-history.jsonl":
                for line in part["content"]:
                    row = json.loads(line)
                    Notes.rows[row["_step"]] = row
            elif name == "wandb-summary.json":
                Notes.summary |= json.loads(part["content"][-1])
        Notes.complete |= bool(body.get("complete"))
        Notes.exit_code = body.get("exitcode", Notes.exit_code)


def sync(folder):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Notes)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    env = dict(os.environ, WANDB_BASE_URL=f"http://127.0.0.1:{server.server_address[1]}", WANDB_API_KEY="0" * 40, WANDB_SILENT="true",
               WANDB_ERROR_REPORTING="false", HOME=os.path.abspath(folder) + ".home")
    os.makedirs(env["HOME"], exist_ok=True)
    done = subprocess.run([sys.executable, "-m", "wandb", "sync", folder], env=env, capture_output=True, text=True, timeout=240)
    server.shutdown()
    assert done.returncode == 0, done.stdout + done.stderr
    assert Notes.complete, (done.stdout, done.stderr, Notes.seen)
    config = {key: one["value"] for key, one in json.loads(Notes.upsert["config"]).items()}
    return {"history": [Notes.rows[step] for step in sorted(Notes.rows)], "summary": Notes.summary, "exit_code": Notes.exit_code or 0,
            "run": [Notes.upsert.get(key) for key in ("name", "entity", "project", "groupName")], "config": config,
            "synced": bool(glob.glob(folder + "/*.synced"))}


def send_comet(archive):
    import comet_ml.offline as offline

    sent = {"metrics": [], "parameters": {}, "others": {}}

    class Rest:
        base_url = "none"

        def __getattr__(self, name):
            return lambda *args, **kwargs: None

    class Connection(Rest):
        server_address = "none"

    folder = offline.unzip_offline_archive(archive)
    sender = offline.OfflineSender("key", folder, raise_validation_error_for_tests=True, connection=Connection(), rest_api_client=Rest())
    sender._send_sampled_metrics_batch = lambda samples: sent["metrics"].extend(samples)
    sender._send_log_other = lambda key, value: sent["others"].__setitem__(key, value)
    sender._send_parameter_messages_batch = lambda items: sent["parameters"].update(
        {item.message.get_param_name(): (item.message.param or item.message.params)["paramValue"] for item in items})
    sender._report_experiment_error = lambda message: (_ for _ in ()).throw(AssertionError(message))
    sender._send_messages()
    sent["metrics"] = [[one["metric"]["metricName"], one["metric"]["metricValue"], one["metric"]["step"]] for one in sent["metrics"]]
    sent["experiment"] = [sender.experiment_id, sender.metadata_project_name, sender.metadata_workspace, sender.resume_strategy]
    return sent


if __name__ == "__main__":
    folder, archive = sys.argv[1:]
    (path,) = glob.glob(folder + "/*.wandb")
    print(json.dumps({"records": read_records(path), "sync": sync(folder), "comet": send_comet(archive)}))
