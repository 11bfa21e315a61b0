def pytest_terminal_summary(terminalreporter):
    """How many trainings with each planted mistake were caught."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            found = dict(report.user_properties)
            if report.when == "call" and "planted" in found:
                line = f"{found['planted']}: {found['caught']} of {found['trained']} trainings caught"
                terminalreporter.write_line(line)
