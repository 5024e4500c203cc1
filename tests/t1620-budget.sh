#!/bin/bash
# Money: what is reserved before a call, where a command stops, how it goes on, what a pipe may spend.
. "$(dirname "$0")/lib.sh"
machine say
printf '{"match":"","replies":[{"content":"good","cost_usd":0.01}]}\n' >dear
for i in $(seq 10); do echo "\"case $i\""; done >cases
go="machine-run say --harness scripted --model dear --budget 0.05 --concurrency 10"

# ten at once, money for five: exactly five are bought, the printed command buys the rest
expect 4 $go <cases
eq "$(lines "$out")" 5
has "$err" "to go on: $go"
has "$err" "5 run, \$0.05"
expect 0 $go <cases
eq "$(lines "$out")" 10
has "$err" "5 stored, 5 run, \$0.05"
expect 0 $go <cases
has "$err" "10 stored, 0 run, \$0.00"

# a whole pipe under one budget; none is no limit; the total is that of the rows
expect 4 machine-budget 0.03 machine-run say --harness scripted --model dear --no-resume <cases
eq "$(lines "$out")" 3
expect 0 machine-run say --harness scripted --model dear --no-resume --budget none <cases
expect 0 machine-spend
eq "$(jq -c '[.calls, .usd]' "$out")" '[23,0.23]'
expect 0 machine-spend --by day --since 1h
eq "$(jq -s 'map(.calls) | add' "$out")" 23
expect 129 machine-run say --harness scripted --model dear --budget much hi
expect 129 machine-budget

# what costs nothing needs no money
expect 0 machine-run say --budget 0 hi
has "$err" '$0.00'
