// Command typed is a client of an API server as projects in Go have them. It
// runs against the server of KUBECONFIG and prints what it saw as JSON;
// tests/conformance runs it against two servers and compares the output.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Longer than any run on a busy machine, so that a run always ends.
const limit = 4 * time.Minute

func main() {
	log.SetFlags(0)
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: typed controller | accepts < PATHS | methods < PATHS | roundtrip")
	}
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		log.Fatal(err)
	}
	config.UserAgent = "typed/1.0"
	config.QPS, config.Burst = -1, -1
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	seen, err := run(ctx, flag.Arg(0), config)
	if err != nil {
		log.Fatalf("typed %s: %v", flag.Arg(0), err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(seen); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, command string, config *rest.Config) (any, error) {
	switch command {
	case "controller":
		return runController(ctx, config)
	case "methods", "accepts":
		paths, err := io.ReadAll(os.Stdin)
		if err != nil {
			return nil, err
		}
		if command == "methods" {
			return runMethods(ctx, config, string(paths))
		}
		return runAccepts(ctx, config, string(paths))
	case "roundtrip":
		return runRoundTrip(ctx, config)
	default:
		flag.Usage()
		return nil, fmt.Errorf("no such command")
	}
}
