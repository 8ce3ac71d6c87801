"use server";

import { redirect } from "next/navigation";
import { serverClient } from "@/lib/supabase";

export async function signIn(form: FormData) {
  const email = String(form.get("email") ?? "");
  const password = String(form.get("password") ?? "");
  const client = await serverClient();
  const { error } = await client.auth.signInWithPassword({ email, password });
  redirect(error ? "/?failed=1" : "/");
}
