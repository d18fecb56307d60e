# SPDX-License-Identifier: Apache-2.0
"""All rules: see posix_rules."""

from posix_rules import rules_of
from posix_rules_access import ACCESS
from posix_rules_attributes import ATTRIBUTES
from posix_rules_data import DATA
from posix_rules_names import NAMES

RULES = rules_of(NAMES + DATA + ACCESS + ATTRIBUTES)
