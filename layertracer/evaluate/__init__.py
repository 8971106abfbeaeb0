"""C-Eval and CMMLU: questions, prompts, scoring, statistics, history."""
