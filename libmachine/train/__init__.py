"""A round of training whole: sample, grade, train, judge; the report and its page."""
