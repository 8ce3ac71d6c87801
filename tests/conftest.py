"""Its being here puts this folder on the path, so that every test can `import wire`."""
