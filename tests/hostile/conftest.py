"""How many hostile inputs were tried: the last line of a fuzzing run, summed over readers and processes."""


def pytest_terminal_summary(terminalreporter):
    reports = terminalreporter.stats.get("passed", []) + terminalreporter.stats.get("failed", [])
    counts = [dict(report.user_properties) for report in reports if report.when == "call"]
    readers = [count for count in counts if "hostile_inputs" in count]
    if not readers:
        return
    tried, refused, unhandled = (
        sum(count[name] for count in readers) for name in ("hostile_inputs", "refused", "unhandled")
    )
    terminalreporter.write_line(
        f"hostile inputs: {tried:,} tried by {len(readers)} readers, {refused:,} refused with one line, "
        f"{tried - refused - unhandled:,} read, {unhandled:,} unhandled exceptions"
    )
