// Package e2e tests whole clusters of real processes: nodes are killed, stopped, cut off and restarted while clients
// write through NBD, and whatever was acknowledged must be there afterwards. It has no code but tests and what they
// share:
//
//	rig       a cluster on this machine, one process a node (package dev), with questions that wait for an answer
//	workload  a client that writes stamped sectors and knows exactly what each may hold
//
// It must not know how the cluster works: it starts the program, speaks to its API and its NBD server, sends signals,
// and damages files as a bad day would. SAMOVAR_BINARY names the program; without it, it is built once.
//
// Every test ends only processes that it started, and leaves nothing behind. The logs of the nodes are shown when a
// test fails.
package e2e
