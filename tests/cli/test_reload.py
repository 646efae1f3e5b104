"""SIGHUP: the token, the certificate and the log level are read again, without a restart."""

import argparse
import asyncio
import logging
import os
import signal
import threading
from contextlib import contextmanager

import pytest
import structlog
from msgspec.structs import replace

from evaluator.adapters.http import Access, HttpServer
from evaluator.cli import live, reloading
from evaluator.cli.execution import settings_of
from tests.adapters.synthetic import FixedViews
from tests.adapters.test_access import TOKEN, write_pair
from tests.kafka.process import Process
from tests.waiting import PATIENCE_SECONDS, until


class ReloadSetup:
    """A process: its files, the settings that it began with, and its server."""

    def __init__(self, folder):
        self.file, self.token = folder / "settings.toml", folder / "token"
        certfile, keyfile = write_pair(folder)
        self.token.write_text(TOKEN)
        self.write('log_level = "info"')
        self.options = argparse.Namespace(config=self.file, set=[])
        self.began_with = settings_of(self.options)
        access = Access(token_file=str(self.token), certfile=str(certfile), keyfile=str(keyfile))
        access.start()
        self.server = HttpServer(FixedViews(), host="127.0.0.1", port=0, access=access)

    def write(self, line):
        self.file.write_text(f'log_format = "json"\n{line}\n')

    def reload(self):
        reloading.reload(self.options, self.began_with, self.server)


@pytest.fixture
def reload_setup(tmp_path):
    before = structlog.get_config()
    yield ReloadSetup(tmp_path)
    structlog.configure(**before)
    logging.getLogger("aiokafka").setLevel(logging.NOTSET)


@contextmanager
def ending(process):
    try:
        yield
    finally:
        process.end()


def events(text):
    return [line.split('"event": "')[1].split('"')[0] for line in text.splitlines()]


def test_the_log_level_is_that_of_the_file(reload_setup, capsys):
    for level, written in [("debug", True), ("error", False), ("info", True)]:
        reload_setup.write(f'log_level = "{level}"')
        reload_setup.reload()
        capsys.readouterr()
        structlog.get_logger("x").info("an_event")
        assert ("an_event" in capsys.readouterr().err) is written
    assert logging.getLogger("aiokafka").level == logging.CRITICAL


def test_other_changed_settings_are_named_and_not_used(reload_setup, capsys):
    reload_setup.write("retention_ms = 7200000")
    reload_setup.reload()
    line = capsys.readouterr().err.splitlines()[-1]
    assert '"event": "settings_reloaded"' in line
    assert '"log_level": "info"' in line
    assert '"restart_needed_for": ["retention_ms"]' in line


@pytest.mark.parametrize("content", ["log_level = 'loud'", "no toml", None])
def test_an_unusable_settings_file_changes_nothing(reload_setup, capsys, content):
    reload_setup.reload()
    if content is None:
        reload_setup.file.unlink()
    else:
        reload_setup.write(content)
    reload_setup.reload()
    structlog.get_logger("x").info("an_event")
    assert events(capsys.readouterr().err)[-2:] == ["settings_unusable", "an_event"]


def test_an_unusable_token_is_logged_each_time(reload_setup, capsys):
    reload_setup.write('log_level = "warning"')
    reload_setup.reload()
    reload_setup.token.write_text("short")
    capsys.readouterr()
    reload_setup.reload()
    reload_setup.reload()
    assert events(capsys.readouterr().err) == ["http_token_unusable"] * 2


def test_the_certificate_is_reloaded_even_if_its_files_seem_unchanged(reload_setup, capsys):
    reload_setup.reload()
    capsys.readouterr()
    reload_setup.reload()
    assert events(capsys.readouterr().err) == ["http_certificate_renewed", "settings_reloaded"]


def test_files_are_not_read_in_the_event_loop(reload_setup, monkeypatch):
    threads, loops, reloaded = [], [], asyncio.Event()

    def reload(*_):
        threads.append(threading.current_thread())
        loops[0].call_soon_threadsafe(reloaded.set)

    async def work():
        loops.append(asyncio.get_running_loop())
        os.kill(os.getpid(), signal.SIGHUP)
        await reloaded.wait()

    monkeypatch.setattr(reloading, "reload", reload)
    settings = replace(reload_setup.began_with, http_port=0)
    asyncio.run(live.serve(work, lambda: None, FixedViews(), settings, reload_setup.options))
    assert threads[0] is not threading.main_thread()


def test_signals_during_a_slow_reload_cause_one_more_reload(reload_setup, monkeypatch):
    slow, began = threading.Event(), []

    def reload(*_):
        began.append(threading.current_thread())
        slow.wait(PATIENCE_SECONDS)

    def threads():
        return {each for each in threading.enumerate() if each.name == "reload"}

    async def work():
        while len(threads()) < 2:
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.001)

    monkeypatch.setattr(reloading, "reload", reload)
    settings = replace(reload_setup.began_with, http_port=0)
    asyncio.run(live.serve(work, lambda: None, FixedViews(), settings, reload_setup.options))
    for _ in range(20):
        reloading.hang_up(reload_setup.options, settings, None)
    both = threads()  # while the process ends
    assert (len(began), len(both)) == (1, 2)
    slow.set()
    for thread in both:
        thread.join(PATIENCE_SECONDS)
    assert set(began) == both
    reloading.hang_up(reload_setup.options, settings, None)
    until(lambda: len(began) == 3)


def test_a_thread_that_cannot_start_is_logged_and_later_signals_reload(
    reload_setup, monkeypatch, capsys
):
    def start(_):
        raise RuntimeError("can't start new thread")

    reloaded = threading.Event()
    monkeypatch.setattr(reloading, "reload", lambda *_: reloaded.set())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for _ in range(3):  # more than wait for each other
            reloading.hang_up(reload_setup.options, reload_setup.began_with, None)
    written = "".join(capsys.readouterr())
    assert written.count("no thread to read them: can't start new thread") == 3
    reloading.hang_up(reload_setup.options, reload_setup.began_with, None)
    assert reloaded.wait(PATIENCE_SECONDS)


@pytest.mark.slow
def test_a_process_that_waits_for_its_broker_reloads_and_keeps_waiting(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text('log_level = "info"\n')
    arguments = ["run", "--source=kafka://127.0.0.1:1", f"--config={file}", "--set=log_format=json"]
    process = Process(tmp_path, *arguments)
    with ending(process):
        process.eventually(lambda: process.events("http_started"))
        file.write_text('log_level = "debug"\nmaturity_ms = 1\n')
        process.signal(signal.SIGHUP)
        [event] = process.eventually(lambda: process.events("settings_reloaded"))
        assert event["log_level"] == "debug"
        assert event["restart_needed_for"] == ["maturity_ms"]
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
