"""Turn stored series into energies with their uncertainty, and results of runs into figures of a study.

Pure functions: no sockets, no processes, no sentences (only `Check.__str__` asks `report` for one).
docs/explanation/analysis.md is the guide: the way of the data, the place of every term, the origin of every constant.
The files by subject:

    one channel      readings, counter, power, unseen (sensors that measure part of the time)
    several meters   channels, slow_meters (lag and guide), joining, breakdown, job_accounting
    one run          analyse (begin here), marked_phases, checks, meter_checks, device_checks, nameplate, result,
                     results_file; power_profile, profile_buckets for pages; live_state, live_energy while it goes on
    a study          study_cells, cell_lines, statistics, cell_metrics, cell_comparison, goals, study_notes
"""
