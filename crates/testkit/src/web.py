"""A web server and a store of objects: web.py FOLDER LOG [CERTIFICATE KEY]. It says its port, and logs each method and path.

It is as most web servers are: a PUT replaces the whole file, whatever range it names. Of S3 it knows what nbdkit's plugin uses.
"""

import http.server
import os
import re
import ssl
import sys
import urllib.parse

folder, log = sys.argv[1:3]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def file(self):
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).strip("/")
        return os.path.join(folder, path.replace("/", "%2F"))

    def answer(self, status, body=b"", headers=()):
        with open(log, "a") as lines:
            lines.write(f"{self.command} {self.path}\n")
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def missing(self):
        self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>", [("Content-Type", "application/xml")])

    def body(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return body
        whole = b""
        while body:
            size, _, body = body.partition(b"\r\n")
            size = int(size.split(b";")[0], 16)
            if size == 0:
                break
            whole, body = whole + body[:size], body[size + 2 :]
        return whole

    def listed(self):
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        bucket = os.path.basename(self.file())
        names = [n.replace("%2F", "/") for n in os.listdir(folder)]
        keys = sorted(n[len(bucket) + 1 :] for n in names if n.startswith(bucket + "/"))
        prefix, after = (query.get(name, [""])[0] for name in ("prefix", "start-after"))
        keys = [key for key in keys if key.startswith(prefix) and key > after]
        rows = "".join(f"<Contents><Key>{key}</Key></Contents>" for key in keys)
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        self.answer(200, body.encode(), [("Content-Type", "application/xml")])

    def do_GET(self):
        if "list-type=2" in self.path:
            return self.listed()
        try:
            with open(self.file(), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
                usual = [("Accept-Ranges", "bytes"), ("ETag", '"x"')]
                if self.command == "HEAD":
                    with open(log, "a") as lines:
                        lines.write(f"HEAD {self.path}\n")
                    self.send_response(200)
                    for name, value in usual + [("Content-Length", str(size))]:
                        self.send_header(name, value)
                    return self.end_headers()
                if not wanted:
                    return self.answer(200, file.read(), usual)
                first = int(wanted[1])
                last = min(int(wanted[2] or size - 1), size - 1)
                file.seek(first)
                usual.append(("Content-Range", f"bytes {first}-{last}/{size}"))
                return self.answer(206, file.read(last + 1 - first), usual)
        except FileNotFoundError:
            return self.missing()

    do_HEAD = do_GET

    def do_PUT(self):
        body = self.body()
        with open(self.file(), "wb") as file:
            file.write(body)
        self.answer(200, b"", [("ETag", '"x"')])

    def do_POST(self):
        body = self.body().decode()
        for key in re.findall("<Key>(.*?)</Key>", body):
            try:
                os.remove(self.file() + "%2F" + key.replace("/", "%2F"))
            except FileNotFoundError:
                pass
        self.answer(200, b"<DeleteResult></DeleteResult>", [("Content-Type", "application/xml")])

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
if len(sys.argv) > 3:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[3], sys.argv[4])
    server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
