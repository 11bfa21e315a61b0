import gzip
import hashlib
import io
import logging
import tarfile
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedproof.data import fetch
from fedproof.data.fetch import PUBLISHED, Download
from fedproof.data.files import unpack


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def site(tmp_path):
    """Address of a web server on this machine, and the folder it serves."""
    folder = tmp_path / "site"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()
        thread.join()


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    logging.getLogger("pooch").setLevel(logging.WARNING)
    return folder


def published(url, content, **members):
    sha256 = hashlib.sha256(content).hexdigest()
    return {"set": (Download(urls=(url,), sha256=sha256, folder="set", members=members.get("members", {})),)}


def zip_of(**files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return out.getvalue()


def tar_of(*entries):
    """A .tar.gz of (name, content) files; content None is a link to /etc/passwd."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as packed:
        for name, content in entries:
            entry = tarfile.TarInfo(name)
            if content is None:
                entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
                packed.addfile(entry)
            else:
                entry.size = len(content)
                packed.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def test_a_file_is_downloaded_once_and_checked(site, data):
    address, folder = site
    (folder / "a.gz").write_bytes(b"content")
    source = published(f"{address}/a.gz", b"content")
    assert fetch("set", data_dir=data, published=source) == (data / "set" / "a.gz",)
    (folder / "a.gz").unlink()
    assert fetch("set", data_dir=data, published=source)[0].read_bytes() == b"content"
    assert [path.name for path in (data / "set").iterdir()] == ["a.gz"]


def test_wrong_checksum_leaves_no_file(site, data):
    address, folder = site
    (folder / "a.gz").write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"a\.gz does not have the published sha256.*put it at .*set/a\.gz"):
        fetch("set", data_dir=data, published=published(f"{address}/a.gz", b"content"))
    assert list((data / "set").iterdir()) == []


def test_a_file_with_a_wrong_checksum_is_not_replaced(data):
    (data / "set").mkdir()
    (data / "set" / "a.gz").write_bytes(b"mine")
    with pytest.raises(ValueError, match=r"set/a\.gz has sha256 .*remove it and fetch it again"):
        fetch("set", data_dir=data, published=published("http://127.0.0.1:9/a.gz", b"content"))
    assert (data / "set" / "a.gz").read_bytes() == b"mine"


def test_without_network_the_line_says_which_file_to_put_where(data):
    with pytest.raises(
        ValueError, match=r"cannot be reached.*download http://127.* put it at .*set/a\.zip"
    ) as e:
        fetch("set", data_dir=data, published=published("http://127.0.0.1:9/a.zip", b"x", members={"m": 5}))
    assert "\n" not in str(e.value)


def test_missing_page_tries_the_next_address(site, data):
    address, folder = site
    (folder / "a.gz").write_bytes(b"content")
    sha256 = hashlib.sha256(b"content").hexdigest()
    urls = (f"{address}/gone/a.gz", f"{address}/a.gz")
    source = {"set": (Download(urls=urls, sha256=sha256, folder="set"),)}
    assert fetch("set", data_dir=data, published=source)[0].read_bytes() == b"content"


def test_an_archive_is_unpacked_and_removed(site, data):
    address, folder = site
    content = zip_of(**{"inside/one.txt": b"1", "two.txt": b"22", "other.txt": b"3"})
    (folder / "a.zip").write_bytes(content)
    source = published(f"{address}/a.zip", content, members={"one.txt": 1, "two.txt": 2})
    paths = fetch("set", data_dir=data, published=source)
    assert [path.read_bytes() for path in paths] == [b"1", b"22"]
    assert sorted(path.name for path in (data / "set").iterdir()) == ["one.txt", "two.txt"]
    (folder / "a.zip").unlink()
    assert fetch("set", data_dir=data, published=source) == paths


def test_an_archive_the_user_brought_needs_no_network_and_stays(data):
    content = tar_of(("batch/one.bin", b"1"))
    (data / "set").mkdir()
    (data / "set" / "a.tar.gz").write_bytes(content)
    source = published("http://127.0.0.1:9/a.tar.gz", content, members={"one.bin": 1})
    assert fetch("set", data_dir=data, published=source) == (data / "set" / "one.bin",)
    assert (data / "set" / "a.tar.gz").is_file()


@pytest.mark.parametrize("name", ["../../one.bin", "/tmp/fedproof-outside/one.bin", "a/../../one.bin"])
@pytest.mark.parametrize("pack", ["tar", "zip"])
def test_nothing_is_unpacked_outside_the_folder(tmp_path, name, pack):
    inside = tmp_path / "deep" / "inside"
    inside.mkdir(parents=True)
    archive = inside / ("a.zip" if pack == "zip" else "a.tar.gz")
    archive.write_bytes(zip_of(**{name: b"1"}) if pack == "zip" else tar_of((name, b"1")))
    unpack(archive, folder=inside, members={"one.bin": 1})
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [archive.name, "one.bin"]
    assert (inside / "one.bin").read_bytes() == b"1"


def test_links_in_archives_are_not_followed(tmp_path):
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(tar_of(("one.bin", None)))
    with pytest.raises(ValueError, match=r"a\.tar\.gz does not hold one\.bin"):
        unpack(archive, folder=tmp_path, members={"one.bin": 10**6})


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.zip", b"no zip", "is damaged"),
        ("a.zip", zip_of(**{"one.bin": bytes(10**6)}), "one.bin unpacks to more than 1000 bytes"),
        ("a.zip", zip_of(**{"one.bin": b"123456789"}).replace(b"12345", b"54321"), "is damaged"),
        ("a.tar.gz", b"no tar", "is damaged"),
        ("a.tar.gz", tar_of(("one.bin", bytes(10**6))), "one.bin unpacks to more than 1000 bytes"),
        ("a.tar.gz", gzip.compress(b"no tar"), "is damaged"),
        ("a.tar.gz", tar_of(("one.bin", bytes(range(250))))[:60], "is damaged"),
        ("a.tar.gz", tar_of(("two.bin", b"2")), "does not hold one.bin"),
    ],
    ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else value,  # gzip holds the time
)
def test_bad_archives_are_named_and_leave_nothing(tmp_path, file, content, message):
    archive = tmp_path / file
    archive.write_bytes(content)
    with pytest.raises(ValueError, match=f"{file}.*{message}"):
        unpack(archive, folder=tmp_path, members={"one.bin": 1000})
    assert [path.name for path in tmp_path.iterdir()] == [file]


def test_names_that_cannot_be_fetched(data):
    assert fetch("digits") == ()
    with pytest.raises(
        ValueError, match="leaf/femnist cannot be fetched; LEAF data are made by its own scripts"
    ):
        fetch("leaf/femnist", data_dir=data)
    with pytest.raises(ValueError, match="'imagenet' cannot be fetched; known: digits, mnist, cifar10"):
        fetch("imagenet", data_dir=data)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_checksums_are_well_formed(name):
    for download in PUBLISHED[name]:
        assert len(bytes.fromhex(download.sha256)) == 32
        assert len({url.rsplit("/", 1)[1] for url in download.urls}) == 1
