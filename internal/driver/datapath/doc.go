// Package datapath measures and tests the drivers together: an engine over sockets and over the process, replicas on
// real files. It has tests only.
package datapath
